"""What a batch was trained on, token by token, against the recorded calls (invariants 5, 6 and 8)."""

import hashlib
from collections import Counter

import numpy as np
from sqlalchemy import Engine, Row, select

from infra.audit.coverage import due_on
from infra.audit.groups import BatchFact, GroupFact
from infra.audit.histories import CallHistory, load_history
from infra.audit.payloads import Path, Payload, Span, read_payload
from infra.audit.reader import stream
from infra.audit.report import Findings
from infra.objects import ObjectStore
from infra.records import schema


class TargetAudit:
    """Checks the payloads of committed batches, one group's calls and one payload in memory at a time.

    An execution belongs to one group and a group to one batch, so targets are compared within an execution and its
    batch; should an execution turn up in a second batch, the first one's payloads are read again.
    """

    def __init__(self, engine: Engine, store: ObjectStore, findings: Findings, groups: dict[str, GroupFact]) -> None:
        self._engine = engine
        self._store = store
        self._findings = findings
        self._groups = groups
        self._batches_of: dict[str, list[str]] = {}
        self.target_tokens = 0

    def check_batch(self, batch: BatchFact) -> int:
        """Check every micro-step of a committed batch; returns its number of target tokens."""
        trained: Counter[str] = Counter()
        seen: dict[str, set[bytes]] = {}
        histories: dict[str, CallHistory] = {}
        untrained: dict[str, list[bytes]] = {}
        last_group = None
        for row in self._micro_steps(batch.batch):
            if row.group_id != last_group:
                self._check_coverage(batch, untrained, seen)
                histories, untrained, last_group = {}, {}, row.group_id
            payload = self._payload(row)
            if payload is None:
                continue
            self._check_label(row, payload)
            for path in payload.paths:
                count = self._check_path(batch, payload, path, histories, seen)
                trained[path.execution] += count
                left = _left_out(payload, path, histories[path.execution])
                untrained.setdefault(path.execution, []).extend(left)
        self._check_coverage(batch, untrained, seen)
        for name in batch.groups:
            self._check_counts(name, trained)
        for execution in trained:
            self._batches_of.setdefault(execution, []).append(batch.batch)
        self.target_tokens += trained.total()
        return trained.total()

    def _micro_steps(self, batch: str):
        table = schema.micro_steps
        return stream(self._engine, select(table).where(table.c.batch == batch).order_by(table.c.micro_step))

    def _payload(self, row: Row) -> Payload | None:
        subject = f"{row.batch} micro-step {row.micro_step}"
        try:
            blob = self._store.read(row.uri)
        except FileNotFoundError:
            self._findings.add("payload-missing", subject, row.uri)
            return None
        if hashlib.sha256(blob).hexdigest() != row.sha256:
            self._findings.add("payload-altered", subject, row.uri)
        try:
            return read_payload(blob)
        except ValueError as error:
            self._findings.add("payload-missing", subject, str(error))
            return None

    def _check_label(self, row: Row, payload: Payload) -> None:
        told = (row.batch, row.micro_step, row.group_id, row.tokens, row.target_tokens)
        found = (payload.batch, payload.index, payload.group, len(payload.ids), int(payload.targets.sum()))
        subject = f"{row.batch} micro-step {row.micro_step}"
        self._findings.expect(told == found, "payload-mislabelled", subject, f"record {told}, payload {found}")
        owners = np.zeros(len(payload.ids), dtype=np.int64)
        for path in payload.paths:
            owners += _trained(payload, path)
        differing = int((owners != payload.targets).sum())
        self._findings.expect(differing == 0, "target-mask-differs", subject, f"{differing} places")

    def _check_path(
        self,
        batch: BatchFact,
        payload: Payload,
        path: Path,
        histories: dict[str, CallHistory],
        seen: dict[str, set[bytes]],
    ) -> int:
        findings, subject = self._findings, f"{path.execution} in {batch.batch} micro-step {payload.index}"
        places = path.places
        mask = payload.targets[places].astype(bool)
        own = _trained(payload, path)[places] > 0
        counting = (payload.positions[places] == np.arange(len(places))).all()
        findings.expect(bool(counting), "positions-differ", subject, "rotary positions")
        group = self._groups.get(payload.group)
        if group is None or path.execution not in group.advantages:
            detail = f"{int(mask.sum())} targets, but no advantage in {payload.group}"
            findings.expect(not mask.any(), "invalid-execution-trained", subject, detail)
        else:
            right = group.advantages[path.execution] / max(group.target_tokens[path.execution], 1)
            close = np.isclose(payload.weights[places], np.where(own, right, 0.0), rtol=1e-4, atol=1e-9)
            right_weights = bool((close | (mask & ~own)).all())  # a target of another path is judged with that one
            findings.expect(right_weights, "weight-differs", subject, f"expected {right:.6g} at targets, 0 elsewhere")
        if path.execution not in histories:
            histories[path.execution] = load_history(self._engine, path.execution)
        for span in path.spans:
            self._check_span(batch, payload, path, span, histories[path.execution], subject)
        if path.execution not in seen:
            seen[path.execution] = self._trained_before(path.execution)
        digests = target_digests(payload.ids[places], own)
        twice = len(digests) - len(set(digests)) + len(seen[path.execution].intersection(digests))
        if twice:
            findings.add("target-trained-twice", subject, f"{twice} tokens", times=twice)
        seen[path.execution].update(digests)
        return len(digests)

    def _check_span(
        self, batch: BatchFact, payload: Payload, path: Path, span: Span, history: CallHistory, subject: str
    ) -> None:
        call = history.calls.get(span.call)
        count = span.end - span.start
        if call is None or count <= 0 or span.offset < 0 or span.offset + count > len(call.output):
            self._findings.add("target-unknown-call", subject, f"{span}")
            return
        full = history.full_ids(span.call)
        depth = call.prompt_tokens + span.offset
        placed = np.array_equal(path.places[depth : depth + count], np.arange(span.start, span.end))
        led = payload.ids[path.places[: depth + count]]
        same = placed and full is not None and np.array_equal(led, full[: depth + count])
        self._findings.expect(same, "target-ids-differ", subject, f"{span}")
        outputs, places = slice(span.offset, span.offset + count), slice(span.start, span.end)
        equal = np.array_equal(payload.behaviour_logprobs[places], call.logprobs[outputs])
        self._findings.expect(equal, "target-logprob-differs", subject, f"{span}")
        versions = payload.versions[places]
        equal = np.array_equal(versions, call.versions[outputs])
        self._findings.expect(equal, "target-version-differs", subject, f"{span}")
        newest = int(versions.max())
        detail = f"version {newest}, the batch trains {batch.version_before}"
        self._findings.expect(newest <= batch.version_before, "target-from-the-future", subject, detail)

    def _check_counts(self, name: str, trained: Counter[str]) -> None:
        group = self._groups.get(name)
        for execution in group.advantages if group else ():
            frozen = group.target_tokens[execution] if group else 0
            detail = f"trained on {trained[execution]}, |T_i| is {frozen}"
            self._findings.expect(trained[execution] == frozen, "target-count-differs", execution, detail)

    def _check_coverage(self, batch: BatchFact, untrained: dict[str, list[bytes]], seen: dict[str, set[bytes]]) -> None:
        """What one path does not train although it is due there must be trained by another."""
        for execution, digests in untrained.items():
            lost = len(set(digests) - seen[execution])
            if lost:
                self._findings.add("target-lost", f"{execution} in {batch.batch}", f"{lost} tokens", times=lost)

    def _trained_before(self, execution: str) -> set[bytes]:
        digests: set[bytes] = set()
        for batch in self._batches_of.get(execution, ()):
            for row in self._micro_steps(batch):
                payload = self._payload(row)
                if payload is None:
                    continue
                for path in payload.paths:
                    if path.execution == execution:
                        own = _trained(payload, path)[path.places] > 0
                        digests.update(target_digests(payload.ids[path.places], own))
        return digests


def _trained(payload: Payload, path: Path) -> np.ndarray:
    """int64 [s]: how often the path's spans name each of its places."""
    named = np.zeros(len(payload.ids), dtype=np.int64)
    for span in path.spans:
        named[max(span.start, 0) : max(span.end, 0)] += 1
    off_path = np.ones(len(named), dtype=bool)
    off_path[path.places] = False
    named[off_path] = 0
    return named


def _left_out(payload: Payload, path: Path, history: CallHistory) -> list[bytes]:
    """Digests of the tokens that are due on a path and not among its own targets."""
    ids, own = payload.ids[path.places], _trained(payload, path)[path.places] > 0
    return target_digests(ids, due_on(history, ids) & ~own)


def target_digests(ids: np.ndarray, mask: np.ndarray) -> list[bytes]:
    """One digest per target: of all ids of its path up to and with it. Equal digests are the same target."""
    running, digests, hashed = hashlib.blake2b(digest_size=12), [], 0
    data = ids.astype("<i4").tobytes()
    for place in np.flatnonzero(mask).tolist():
        running.update(data[4 * hashed : 4 * (place + 1)])
        hashed = place + 1
        digests.append(running.copy().digest())
    return digests
