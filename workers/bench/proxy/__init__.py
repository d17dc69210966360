"""What a proxy costs: ours beside litellm's and sglang-router, in one run over the same paced engines.

One core serves the contestant that is measured, the other one the engines and the load. Every contestant is sent the
same requests: streamed chat completions of one prompt length, each with an answer of the same number of tokens.
"""
