"""Ids of tool calls: minted from the call they belong to, so they are the same whenever they are asked for, and known
again in what a harness sends back, also by a proxy that was restarted."""

import re

_MINTED = re.compile(r"[a-z]+_[0-9a-f]{24}")


def mint(prefix: str, call: str, index: int) -> str:
    """Id of tool call number `index` of model call `call` (32 hexadecimal digits). `prefix` ends with an underscore."""
    return f"{prefix}{call[:20]}{index:04x}"


def is_minted(value: object) -> bool:
    """Whether an id looks like one of ours. Others would need 96 bits of luck."""
    return isinstance(value, str) and _MINTED.fullmatch(value) is not None
