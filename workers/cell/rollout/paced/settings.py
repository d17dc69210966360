"""What one paced engine is told at its start."""

from pydantic import Field

from workflows.messages.base import Message


class PacedSettings(Message):
    """Rates are per second; `tokens_per_second` is that of one request, however many run."""

    model: str = Field(default="", description="folder with tokenizer.json and safetensors; empty: ids only")
    version: str = "0"
    seed: int = 0
    tokens_per_second: float = Field(default=200.0, gt=0)
    prefill_tokens_per_second: float = Field(default=20000.0, gt=0)
    slots: int = Field(default=8, ge=1, description="requests it runs at once; the rest wait inside the engine")
    kv_tokens: int = Field(default=16384, ge=8)
    context: int = Field(default=4096, ge=8)
    vocab_size: int = Field(default=1000, ge=8, description="used when `model` has no tokenizer")
    mean_output_tokens: int = Field(default=200, ge=1, description="of unscripted answers that may stop")
    script: str = Field(default="", description="file of scripted replies, or module:function")
    load_seconds: float = Field(default=0.0, ge=0, description="a weight update takes that long")
    incremental: bool = Field(default=False, description="SSE events carry only what is new")
    stream_interval: int = Field(default=1, ge=1, description="new tokens an SSE event waits for")
    vary_by_session: bool = Field(default=False, description="tokens also depend on the request's session_id")
    grammar_backend: str = Field(default="none", description="anything but none: grammars are accepted and ignored")
    disconnect_seconds: float = Field(default=2.0, ge=0, description="until a request without a client is aborted")
    admin_api_key: str = ""
    may_die: bool = Field(default=False, description="the fault `die` really kills this process")
