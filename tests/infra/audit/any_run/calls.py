"""Faults in requests, recorded tokens and the versions they were served at (invariants 3, 4 and 7)."""

from infra.records import schema
from infra.records.tokens import pack_logprobs, unpack_logprobs
from tests.infra.audit.any_run.subjects import call, calls, change, child, departures, first, plants, rows, segments
from tests.infra.audit.recording import SyntheticRun

# 3: requests across engines


@plants("segment-sum")
def tokens_lost(run: SyntheticRun) -> None:
    segment = segments(run, call(run, output_tokens=2)["call"])[0]
    change(run, schema.segments, segment, output_tokens=segment["output_tokens"] + 1)


@plants("segment-prompt")
def sent_less_than_the_prompt(run: SyntheticRun) -> None:
    segment = segments(run, call(run)["call"])[0]
    change(run, schema.segments, segment, prompt_tokens=segment["prompt_tokens"] - 1)


@plants("segment-after-end")
def went_on_after_its_end(run: SyntheticRun) -> None:
    last = segments(run, call(run)["call"])[-1]
    run.add(schema.segments, last | {"segment": last["segment"] + 1, "rid": last["rid"][::-1], "output_tokens": 0})


@plants("rid-repeated")
def request_id_used_again(run: SyntheticRun) -> None:
    one, other = rows(run, schema.segments)[:2]
    change(run, schema.segments, other, rid=one["rid"])


@plants("rid-length")
def request_id_is_a_prefix_of_another(run: SyntheticRun) -> None:
    one = rows(run, schema.segments)[0]
    change(run, schema.segments, one, rid=one["rid"][:-1])


@plants("budget-exceeded")
def longer_than_the_burst_allows(run: SyntheticRun) -> None:
    execution = run.row(schema.executions, execution=call(run, output_tokens=2)["execution"])
    change(run, schema.executions, execution, sampling=execution["sampling"] | {"max_call_tokens": 1})


# 4: recorded tokens


@plants("tokens-misaligned")
def logprob_missing(run: SyntheticRun) -> None:
    one = call(run, output_tokens=2)
    change(run, schema.calls, one, output_logprobs=pack_logprobs(unpack_logprobs(one["output_logprobs"])[:-1]))


@plants("logprob-invalid")
def logprob_is_nan(run: SyntheticRun) -> None:
    one = call(run, output_tokens=2)
    change(run, schema.calls, one, output_logprobs=pack_logprobs([float("nan")] * one["output_tokens"]))


@plants("parent-missing")
def parent_is_the_call_itself(run: SyntheticRun) -> None:
    change(run, schema.calls, child(run), parent_call=child(run)["call"])


@plants("shared-too-long")
def shares_more_than_the_parent_has(run: SyntheticRun) -> None:
    change(run, schema.calls, child(run), shared_tokens=child(run)["shared_tokens"] + 10_000)


@plants("prompt-length")
def prompt_longer_than_its_ids(run: SyntheticRun) -> None:
    change(run, schema.calls, child(run), prompt_tokens=child(run)["prompt_tokens"] + 1)


# 7: weight versions of rollout


@plants("request-went-back")
def tokens_of_an_older_version_followed(run: SyntheticRun) -> None:
    one = call(run, output_tokens=2)
    version = one["version_spans"][-1][0]
    change(run, schema.calls, one, version_spans=[[version + 1, 1], [version, one["output_tokens"] - 1]])


@plants("unpublished-version")
def served_a_version_nobody_made(run: SyntheticRun) -> None:
    change(run, schema.segments, segments(run, call(run)["call"])[0], version=99)


@plants("mixed-kv-unexplained")
def kept_kv_that_no_publish_kept(run: SyntheticRun) -> None:
    change(run, schema.segments, segments(run, call(run, output_tokens=2)["call"])[0], mixed_kv_tokens=1)


@plants("stale-engine")
def returned_with_old_weights(run: SyntheticRun) -> None:
    published = rows(run, schema.updates, "version", holds=lambda row: row["version"] > 0 and row["published_at"])
    since = first(published, "published version")["published_at"] + 1
    late = rows(run, schema.segments, holds=lambda row: row["started_at"] > since)
    change(run, schema.segments, first(late, "request after a publish"), version=0)


@plants("served-while-away")
def served_while_training(run: SyntheticRun) -> None:
    for departure in departures(run):
        back = rows(
            run,
            schema.transitions,
            "started_at",
            holds=lambda row, gone=departure: (
                row["cell"] == gone["cell"] and row["direction"] != "publish" and row["started_at"] > gone["ended_at"]
            ),
        )
        served = rows(run, schema.segments, holds=lambda row, gone=departure: row["cell"] == gone["cell"])
        if back and served and back[0]["started_at"] - departure["ended_at"] > 0.6:
            middle = (back[0]["started_at"] + departure["ended_at"]) / 2
            change(run, schema.segments, served[0], started_at=middle)
            return
    raise LookupError("this run has no cell that served and then trained for a while")


@plants("segment-boot-missing")
def segment_of_an_unknown_boot(run: SyntheticRun) -> None:
    change(run, schema.segments, segments(run, calls(run)[0]["call"])[0], boot_epoch=99)


@plants("token-version-differs")
def tokens_labelled_by_somebody_else(run: SyntheticRun) -> None:
    one = call(run, output_tokens=1)
    change(run, schema.calls, one, version_spans=[[one["version_spans"][0][0] + 7, one["output_tokens"]]])
