"""Faults in segments and recorded tokens (invariants 3 and 4)."""

from infra.records import schema
from infra.records.tokens import pack_logprobs
from tests.infra.audit.planting import MOVED, VICTIM, call_of, change_call, plants
from tests.infra.audit.recording import SyntheticRun

# 3: requests across engines


@plants("segment-sum")
def token_lost_at_the_reroute(run: SyntheticRun) -> None:
    call = call_of(run, MOVED, 1)["call"]
    run.change(schema.segments, {"call": call, "segment": 1}, output_tokens=0)


@plants("segment-prompt")
def reroute_resent_the_prompt_alone(run: SyntheticRun) -> None:
    call = call_of(run, MOVED, 1)
    run.change(schema.segments, {"call": call["call"], "segment": 1}, prompt_tokens=call["prompt_tokens"])


@plants("segment-after-end")
def went_on_after_a_stop(run: SyntheticRun) -> None:
    run.change(schema.segments, {"call": call_of(run, MOVED, 1)["call"], "segment": 0}, ended="stop")


@plants("rid-repeated")
def retry_reused_its_request_id(run: SyntheticRun) -> None:
    call = call_of(run, MOVED, 1)["call"]
    rid = run.row(schema.segments, call=call, segment=0)["rid"]
    run.change(schema.segments, {"call": call, "segment": 1}, rid=rid)


@plants("rid-length")
def request_id_is_a_prefix_of_another(run: SyntheticRun) -> None:
    call = call_of(run, MOVED, 1)["call"]
    rid = run.row(schema.segments, call=call, segment=0)["rid"]
    run.change(schema.segments, {"call": call, "segment": 1}, rid=rid[:-1])


@plants("budget-exceeded")
def resumed_with_the_full_budget(run: SyntheticRun) -> None:
    change_call(run, MOVED, 1, imposed={"budget": 2})


@plants("budget-exceeded")
def longer_than_the_burst_allows(run: SyntheticRun) -> None:
    run.change(schema.executions, {"execution": VICTIM}, sampling={"max_call_tokens": 3})


# 4: recorded tokens


@plants("tokens-misaligned")
def logprob_missing(run: SyntheticRun) -> None:
    change_call(run, VICTIM, 0, output_logprobs=pack_logprobs([-1.0, -1.0, -1.0]))


@plants("tokens-misaligned")
def version_span_too_short(run: SyntheticRun) -> None:
    change_call(run, VICTIM, 0, version_spans=[[0, 3]])


@plants("logprob-invalid")
def logprob_is_nan(run: SyntheticRun) -> None:
    change_call(run, VICTIM, 0, output_logprobs=pack_logprobs([-1.0, float("nan"), -1.0, -1.0]))


@plants("logprob-invalid")
def logprob_is_positive(run: SyntheticRun) -> None:
    change_call(run, VICTIM, 0, output_logprobs=pack_logprobs([-1.0, 0.5, -1.0, -1.0]))


@plants("parent-missing")
def parent_of_another_execution(run: SyntheticRun) -> None:
    change_call(run, VICTIM, 1, parent_call=call_of(run, MOVED, 0)["call"])


@plants("parent-missing")
def parent_is_the_call_itself(run: SyntheticRun) -> None:
    change_call(run, VICTIM, 1, parent_call=call_of(run, VICTIM, 1)["call"])


@plants("shared-too-long")
def shares_more_than_the_parent_has(run: SyntheticRun) -> None:
    change_call(run, VICTIM, 1, shared_tokens=11)


@plants("prompt-length")
def prompt_longer_than_its_ids(run: SyntheticRun) -> None:
    change_call(run, VICTIM, 1, prompt_tokens=13)
