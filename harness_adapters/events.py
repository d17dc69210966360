"""What a harness printed, when it prints one JSON object a line.

The record is capped, so its middle may be missing, a line may be cut, and other text may lie between.
"""

import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness_adapters.protocol import HarnessOutcome
from infra.plain_files import open_plain
from workflows.messages.execution import EndReason


def events(printed: Path | None) -> Iterator[dict[str, Any]]:
    """The objects in order; lines that are none are passed over. Nothing if the file cannot be read."""
    if printed is None:
        return
    try:
        with io.TextIOWrapper(open_plain(printed), encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if not line.startswith("{"):
                    continue
                try:
                    event = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                yield event
    except OSError:
        return


def last_result(printed: Path | None) -> dict[str, Any]:
    """The last `result` event, which Claude Code and those that print like it end with; empty without one."""
    result: dict[str, Any] = {}
    for event in events(printed):
        if event.get("type") == "result":
            result = event
    return result


def outcome_of(result: Mapping[str, Any], exit_code: int | None, said: str, *, is_full: bool) -> HarnessOutcome:
    """What the last result means. `said`: its words, should it have failed; `is_full`: its context was."""
    if not result:
        return HarnessOutcome(end=EndReason.CRASHED, detail=f"it left no result; exit code {exit_code}")
    if result.get("subtype") == "success" and not result.get("is_error"):
        return HarnessOutcome(end=EndReason.SUBMITTED)
    if result.get("subtype") == "error_max_turns":
        return HarnessOutcome(end=EndReason.CALL_LIMIT, detail=said[:2000])
    return HarnessOutcome(end=EndReason.EXITED if is_full else EndReason.CRASHED, detail=said[:2000])


def text_of(value: Any) -> str:
    """The text of a message's content, whatever its shape: a string, or parts with `text`."""
    if isinstance(value, str):
        return value
    parts = value if isinstance(value, list) else []
    return "\n".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))
