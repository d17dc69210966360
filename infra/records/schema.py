"""Tables of a run's database.

The raw records `gyre audit` starts from. Each table has one writer:

    executions          harness host (insert, workspace, end, outcome, trajectory); proxy (first_call_at, model_calls)
    calls, segments     proxy
    engines             proxy (its route table, so that a restarted proxy goes on)
    groups              control worker (admission), batch (batch, consumed_version)
    batches, claims     control worker and cells
    updates             core cell (committed by the batch)
    transitions, ledger control worker
    cores               control worker
    boots               cells

Token arrays are zstd-compressed little-endian arrays in the row (`infra.records.tokens`); they never cross Temporal.
Times are seconds since the epoch (float, UTC).
"""

from typing import Any

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
)

metadata = MetaData()


class FreeText(TypeDecorator[str]):
    """Text of any origin, made fit for every database: without NUL and lone surrogates."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Any) -> str | None:
        return None if value is None else value.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


executions = Table(
    "executions",
    metadata,
    Column("execution", String(200), primary_key=True),
    Column("run", String(40), nullable=False),
    Column("burst", String(40), nullable=False),
    Column("group_index", Integer, nullable=False),
    Column("member", Integer, nullable=False),
    Column("purpose", String(10), nullable=False),
    Column("task", Text, nullable=False),
    Column("harness", String(40), nullable=False),
    Column("client", String(10), nullable=False),
    Column("seed", Integer, nullable=False),
    Column("dispatch_version", Integer, nullable=False),
    Column("sampling", JSON, nullable=False),
    Column("call_limit", Integer, nullable=False),
    Column("wall_seconds", Float),  # its burst's time-out; a task may set a shorter one
    Column("token_sha256", String(64), nullable=False, index=True),
    Column("attempt", Integer, nullable=False),
    Column("state", String(12), nullable=False),  # open | closed : whether the proxy still serves it
    Column("workspace", Text, nullable=False),
    Column("prepared_at", Float),
    Column("first_call_at", Float),
    Column("ended_at", Float),
    Column("closed_at", Float),
    Column("harness_seconds", Float),  # how long its harness ran, without preparing and scoring
    Column("end_reason", String(20)),
    Column("outcome", String(20)),
    Column("reward", Float),
    Column("evaluator", String(64)),  # sha256 of the tests that gave the reward
    Column("model_calls", Integer, nullable=False, default=0),
    Column("trajectory", JSON),  # {payload: ArtifactRef, processed: ProcessedExecution}
    Column("detail", FreeText),
)

calls = Table(
    "calls",
    metadata,
    Column("call", String(32), primary_key=True),  # uuid4 hex
    Column("execution", String(200), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("sequence", Integer, nullable=False),  # order of arrival within the execution, from 0
    Column("dialect", String(12), nullable=False),
    Column("role", String(24), nullable=False),
    Column("state", String(12), nullable=False),  # open | finished | failed | undelivered
    Column("started_at", Float, nullable=False),
    Column("ended_at", Float),
    Column("parent_call", String(32)),  # the call whose ids (prompt + output) this prompt starts with
    Column("shared_tokens", Integer, nullable=False, default=0),  # how many of them
    Column("fork_reason", String(40)),  # why not all of the parent's ids were re-used
    Column("input_tail", LargeBinary, nullable=False),  # int32 ids after the shared ones
    Column("prompt_tokens", Integer, nullable=False),
    Column("output_ids", LargeBinary),  # int32
    Column("output_logprobs", LargeBinary),  # float32, same length
    Column("version_spans", JSON),  # [[version, tokens], ...] in order, summing to the output length
    Column("output_tokens", Integer, nullable=False, default=0),
    Column("finish", String(12)),  # stop | length
    Column("requested", JSON),  # the sampling the harness asked for
    Column("imposed", JSON),  # the sampling really used
    Column("request_sha256", String(64)),  # recognises a duplicate send
    Column("history_sha256", String(64)),  # keys of its messages, and of those with its answer: how it is found again
    Column("error", FreeText),
    Index("calls_of_execution", "execution", "sequence"),
)

segments = Table(
    "segments",
    metadata,
    Column("call", String(32), primary_key=True),
    Column("segment", Integer, primary_key=True),
    Column("rid", String(36), nullable=False),
    Column("engine", String(40), nullable=False),
    Column("cell", Integer, nullable=False),
    Column("boot_epoch", Integer, nullable=False),
    Column("version", Integer, nullable=False),
    Column("seed", Integer),
    Column("started_at", Float, nullable=False),
    Column("ended_at", Float),
    Column("prompt_tokens", Integer, nullable=False),  # sent: prompt + what earlier segments produced
    Column("cached_tokens", Integer),  # of those, found in the engine's cache
    Column("kv_waited", Boolean, nullable=False, default=False),  # waited for a KV hand-off
    Column("output_tokens", Integer, nullable=False, default=0),
    Column("ended", String(20)),  # stop | length | abort | died | refused | discarded (the call began again)
    Column("mixed_kv_tokens", Integer, nullable=False, default=0),  # last output tokens over KV of older weights
    Column("first_token_at", Float),  # the gap from one segment's last token to the next one's first is what a
    Column("last_token_at", Float),  # harness hears of a move
)

engines = Table(
    "engines",
    metadata,
    Column("engine", String(40), primary_key=True),
    Column("cell", Integer, nullable=False),
    Column("boot_epoch", Integer, nullable=False),
    Column("url", Text, nullable=False),
    Column("slots", Integer, nullable=False),
    Column("kv_tokens", Integer, nullable=False),
    Column("standalone", Boolean, nullable=False, default=False),
    Column("version", Integer),
    Column("checksum", String(64)),
    Column("door", String(8), nullable=False),  # open | closed
    Column("updated_at", Float, nullable=False),
)

routes = Table(
    "routes",
    metadata,
    Column("execution", String(200), primary_key=True),
    Column("engine", String(40), nullable=False),
    Column("updated_at", Float, nullable=False),
)

reroutes = Table(
    "reroutes",
    metadata,
    Column("lease", String(200), primary_key=True),
    Column("engine", String(40), nullable=False),
    Column("plan", JSON, nullable=False),  # workflows.messages.routing.ReroutePlan
    Column("made_at", Float, nullable=False),
)

groups = Table(
    "groups",
    metadata,
    Column("group_id", String(60), primary_key=True),  # <burst>/<group>
    Column("run", String(40), nullable=False),
    Column("burst", String(40), nullable=False),
    Column("group_index", Integer, nullable=False),
    Column("sequence", Integer, nullable=False),
    Column("admitted_at", Float, nullable=False),
    Column("admitted_version", Integer, nullable=False),
    Column("valid", Integer, nullable=False),
    Column("no_signal", String(20)),
    Column("members", JSON, nullable=False),  # [{execution, outcome, reward, advantage, target_tokens, left_out}]
    Column("batch", String(120)),
    Column("consumed_version", Integer),
)

batches = Table(
    "batches",
    metadata,
    Column("batch", String(120), primary_key=True),
    Column("run", String(40), nullable=False),
    Column("burst", String(40), nullable=False),
    Column("step", Integer, nullable=False),
    Column("opened_at", Float, nullable=False),
    Column("window_closed_at", Float),
    Column("committed_at", Float),
    Column("version_before", Integer, nullable=False),
    Column("version_after", Integer),
    Column("checksum_before", String(64)),  # of the weights, as this batch was told and as it left them
    Column("checksum_after", String(64)),
    Column("groups", JSON),  # in order of admission
    Column("accepted", JSON),  # [{index, attempt, cell, boot_epoch}]: what counted
    Column("normalizer", Integer),  # V
    Column("settings", JSON),  # of the burst's training: what the gradient depends on
    Column("gradient_checksum", String(64)),  # of the combined gradient as it was applied
    Column("metrics", JSON),
)

micro_steps = Table(
    "micro_steps",
    metadata,
    Column("batch", String(120), primary_key=True),
    Column("micro_step", Integer, primary_key=True),
    Column("group_id", String(60), nullable=False),
    Column("uri", Text, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("tokens", Integer, nullable=False),
    Column("target_tokens", Integer, nullable=False),
)

claims = Table(
    "claims",
    metadata,
    Column("batch", String(120), primary_key=True),
    Column("micro_step", Integer, primary_key=True),
    Column("attempt", Integer, primary_key=True),  # unique per emission and Temporal attempt
    Column("cell", Integer, nullable=False),
    Column("boot_epoch", Integer, nullable=False),
    Column("version", Integer, nullable=False),
    Column("checksum", String(64)),  # of the weights the gradient was computed with, by the actor's own account
    Column("claimed_at", Float, nullable=False),
    Column("done_at", Float),
    Column("metrics", JSON),
)

updates = Table(
    "updates",
    metadata,
    Column("version", Integer, primary_key=True),
    Column("batch", String(120)),
    Column("checksum", String(64), nullable=False),
    Column("checkpoint", Text, nullable=False),
    Column("committed_at", Float, nullable=False),
    Column("published_at", Float),
)

transitions = Table(
    "transitions",
    metadata,
    Column("transition", String(120), primary_key=True),
    Column("run", String(40), nullable=False),
    Column("cell", Integer, nullable=False),
    Column("direction", String(24), nullable=False),
    Column("started_at", Float, nullable=False),
    Column("ended_at", Float),
    Column("result", String(20)),  # done | rolled_back | parked | rebooted | superseded
    Column("steps", JSON),  # [{name, seconds, ...}]
    Column("figures", JSON),  # workflows.messages.transition.TransitionFigures, the reason, the verbs
)

cores = Table(
    "cores",
    metadata,
    Column("change", Integer, primary_key=True, autoincrement=False),  # number of the hand-over; before it: cell 0
    Column("cell", Integer, nullable=False),
    Column("version", Integer, nullable=False),  # of the weights it was named at
    Column("checksum", String(64), nullable=False),
    Column("named_at", Float, nullable=False),
)

ledger = Table(
    "ledger",
    metadata,
    Column("entry", Integer, primary_key=True, autoincrement=True),
    Column("run", String(40), nullable=False),
    Column("at", Float, nullable=False),
    Column("kind", String(24), nullable=False),  # workflows.messages.control.LedgerEntry names them
    Column("cell", Integer),
    Column("reasons", JSON, nullable=False),  # [reason, detail, ...]
    Column("policy", String(24), nullable=False, default=""),
    Column("direction", String(24)),
    Column("together", JSON),  # [cell, ...] beside `cell`
    Column("bottleneck", String(24), nullable=False, default=""),
    Column("expected_gain_seconds", Float),
    Column("iteration_seconds", Float),
    Column("migration_seconds", Float),
    Column("realised_gain_seconds", Float),
    Column("about", String(80), nullable=False, default=""),
    Column("state", JSON, nullable=False),  # the policy's input, as it saw it
    Column("token", String(80), unique=True),  # makes the insert idempotent
)

boots = Table(
    "boots",
    metadata,
    Column("component", String(40), primary_key=True),  # cell-2, proxy, harness-host, control
    Column("boot_epoch", Integer, primary_key=True),
    Column("booted_at", Float, nullable=False),
    Column("pid", Integer, nullable=False),
)
