"""One finding of the doctor."""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    """Works, but not as well as it should, or not everything."""
    FAIL = "fail"
    """A stack will not work here."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`fix` is a command, or empty where there is nothing to fix."""

    name: str
    verdict: Verdict
    detail: str
    fix: str = ""


def ok(name: str, detail: str) -> Finding:
    return Finding(name, Verdict.OK, detail)


def warn(name: str, detail: str, fix: str) -> Finding:
    return Finding(name, Verdict.WARN, detail, fix)


def fail(name: str, detail: str, fix: str) -> Finding:
    return Finding(name, Verdict.FAIL, detail, fix)
