"""Rollout engines as the rest of OpenGyre sees them: SGLang's native HTTP API and the KV linker's control API.

The real server and the paced engine answer the same calls. Importing this package loads neither torch nor SGLang.
"""

from infra.engine.client import EngineClient
from infra.engine.generation import EngineRefused, GenerateChunk, GenerateRequest, VersionSpan, new_rid
from infra.engine.release import EngineLoads, released

__all__ = [
    "EngineClient",
    "EngineLoads",
    "EngineRefused",
    "GenerateChunk",
    "GenerateRequest",
    "VersionSpan",
    "new_rid",
    "released",
]
