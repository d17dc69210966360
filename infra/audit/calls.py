"""One call's recorded tokens: aligned, valid, and conditioned on ids that can be rebuilt (invariant 4)."""

import numpy as np

from infra.audit.histories import CallHistory, RecordedCall
from infra.audit.report import Findings


def check_call(findings: Findings, history: CallHistory, call: RecordedCall) -> None:
    """Check one call against itself and its parent."""
    subject = f"{history.execution} call {call.sequence}"
    if call.has_output:
        _check_output(findings, call, subject)
    length = call.shared + len(call.tail)
    detail = f"{call.shared} shared + {len(call.tail)} own ids, prompt of {call.prompt_tokens}"
    findings.expect(length == call.prompt_tokens, "prompt-length", subject, detail)
    if call.parent is None:
        findings.expect(call.shared == 0, "parent-missing", subject, f"{call.shared} shared tokens, no parent")
        return
    parent = history.calls.get(call.parent)
    if parent is None or parent.sequence >= call.sequence:
        findings.add("parent-missing", subject, f"parent {call.parent}")
        return
    available = parent.prompt_tokens + len(parent.output)
    detail = f"{call.shared} shared tokens, the parent has {available}"
    findings.expect(call.shared <= available, "shared-too-long", subject, detail)


def _check_output(findings: Findings, call: RecordedCall, subject: str) -> None:
    in_spans = sum(count for _, count in call.spans)
    lengths = (len(call.output), len(call.logprobs), in_spans, call.output_tokens)
    sound = len(set(lengths)) == 1 and all(version >= 0 and count > 0 for version, count in call.spans)
    detail = f"ids, log-probs, spans, count: {lengths}"
    findings.expect(sound and not (call.output < 0).any(), "tokens-misaligned", subject, detail)
    wrong = ~np.isfinite(call.logprobs) | (call.logprobs > 0)
    if wrong.any():
        first = int(np.argmax(wrong))
        findings.add("logprob-invalid", subject, f"{call.logprobs[first]} at output token {first}")
