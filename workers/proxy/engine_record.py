"""What the proxy holds of one engine in one boot."""

from dataclasses import dataclass, field

from infra.engine import EngineClient
from workers.proxy.segment import Segment
from workflows.messages.routing import EngineEntry


@dataclass(eq=False)
class EngineRecord:
    """`version` is what the door was opened at; `coming` what it is being brought to in place, requests and all.

    `grammars`: whether it can constrain its output; None until it has said so.
    """

    entry: EngineEntry
    upstream: EngineClient
    door_open: bool = False
    version: int | None = None
    checksum: str | None = None
    coming: int | None = None
    grammars: bool | None = None
    segments: dict[str, Segment] = field(default_factory=dict)
    unsettled: set[str] = field(default_factory=set)  # rids given up on before the engine had ended them
    failures: int = 0
    free_at: float = 0.0
    opened_at: float = 0.0
    retired: bool = False  # another boot has taken its place

    def may_say(self, segment: Segment, version: int) -> bool:
        """Whether a token of `segment` may be of `version`: the one it was sent to, or a newer one brought in place."""
        return version == segment.version or (version > segment.version and version in (self.version, self.coming))
