"""The KV linker: pages of an engine's KV cache, copied to registered host memory and read by other engines.

`pool` holds the pages, `retention` knows sessions and the lease, `store` joins them with the transfer engine,
`control` is the HTTP side, `plugin` the SGLang side. All but `plugin` run without SGLang.
"""
