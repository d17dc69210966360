"""How patient the proxy is. Defaults serve; ``DIR/proxy.json`` overrides them. Every wait of the proxy is in here."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from workflows.messages.base import Message


class ProxySettings(Message):
    hold_seconds: float = Field(default=600.0, gt=0, description="longest a request waits for an engine before 503")
    retry_seconds: float = Field(default=120.0, gt=0, description="longest a request fails at engines without progress")
    max_faults: int = Field(default=8, ge=1, description="engine faults in a row, without a new token, before 503")
    retry_after_seconds: int = Field(default=5, ge=1, description="what a 503 advises")
    sticky_wait_seconds: float = Field(
        default=1.0, ge=0, description="wait for the usual engine's door before going elsewhere"
    )
    oldest_first_seconds: float = Field(
        default=30.0, gt=0, description="a request held this long goes before all younger ones"
    )
    first_token_seconds: float = Field(
        default=180.0, gt=0, description="silence before the first token that counts as a hang"
    )
    next_token_seconds: float = Field(default=60.0, gt=0, description="silence between tokens that counts as a hang")
    abort_grace_seconds: float = Field(default=5.0, gt=0, description="how long an aborted request may take to end")
    abort_again_seconds: float = Field(
        default=1.0, gt=0, description="a request still running this long after its abort is aborted once more"
    )
    abort_attempts: int = Field(default=30, ge=1, description="how often an engine is asked whether it has let go")
    engine_backoff_seconds: float = Field(
        default=0.5, gt=0, description="first pause of an engine that failed; doubles each time"
    )
    backoff_limit_seconds: float = Field(default=8.0, gt=0, description="longest pause of an engine that failed")
    busy_limit_seconds: float = Field(
        default=60.0, gt=0, description="longest pause that an engine's own retry-after may ask for"
    )
    pump_seconds: float = Field(default=0.1, gt=0, description="between looks at requests that wait for time to pass")
    headers_seconds: float = Field(
        default=2.0, gt=0, description="a stream's headers are sent after this at the latest"
    )
    whole_seconds: float = Field(
        default=100.0, gt=0, description="the headers of a reply that is not streamed are sent after this at the latest"
    )
    keepalive_seconds: float = Field(default=10.0, gt=0, description="silence before something is sent to fill it")

    answer_format: Literal["auto", "plain", "qwen-json", "qwen-xml", "llama-json", "deepseek"] = Field(
        default="auto", description="how the policy writes reasoning and tool calls; auto: as its chat template shows"
    )

    @classmethod
    def of(cls, run_dir: Path) -> "ProxySettings":
        file = run_dir / "proxy.json"
        return cls.model_validate_json(file.read_text()) if file.is_file() else cls()
