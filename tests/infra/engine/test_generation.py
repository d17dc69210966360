import pytest

from infra.engine import GenerateRequest, VersionSpan, new_rid
from infra.engine.generation import ChunkReader, check_rid
from workflows.messages.errors import EngineUnavailable, InvalidRequest


def request(**changes) -> GenerateRequest:
    values = {"rid": new_rid(), "input_ids": [1, 2], "max_new_tokens": 4, "cache_key": "run|3|abc"} | changes
    return GenerateRequest(**values)


def event(ids: list[int], total: int, *, finish: dict | None = None, **meta) -> dict:
    pairs = [[-0.5 * token, token, None] for token in ids]
    info = {"completion_tokens": total, "output_token_logprobs": pairs, "finish_reason": finish, "weight_version": "3"}
    return {"output_ids": ids, "meta_info": info | {"prompt_tokens": 2, "cached_tokens": 1} | meta}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"rid": ""}, "rid"),
        ({"rid": "ex-1"}, "rid"),
        ({"rid": "A" * 36}, "rid"),
        ({"cache_key": ""}, "cache_key"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [1, 512]}, "input_ids"),
        ({"input_ids": [-1]}, "input_ids"),
        ({"stop_token_ids": [600]}, "stop_token_ids"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
    ],
)
def test_what_would_harm_the_engine_is_refused(changes, field):
    with pytest.raises(InvalidRequest) as refused:
        request(**changes).body(512)
    assert refused.value.field == field


def test_request_ids_are_of_one_length_and_never_repeat():
    rids = {new_rid() for _ in range(100)}
    assert len(rids) == 100
    assert all(check_rid(rid) == rid for rid in rids)


def test_the_body_asks_for_logprobs_and_separates_kv_by_weights():
    body = request(sampling_seed=5, session_id="run/execution/a").body(512)
    assert body["return_logprob"] is True
    assert body["extra_key"] == "run|3|abc"
    assert body["session_id"] == "run/execution/a"
    assert body["sampling_params"]["sampling_seed"] == 5
    assert "sampling_seed" not in request().body(512)["sampling_params"]


@pytest.mark.parametrize(
    "events", [[([7], 1), ([7, 8, 9], 3)], [([7], 1), ([8, 9], 3)]], ids=["cumulative", "incremental"]
)
def test_both_kinds_of_stream_read_the_same(events):
    reader = ChunkReader()
    chunks = [reader.read(event(ids, total)) for ids, total in events]
    assert [chunk.ids for chunk in chunks] == [(7,), (8, 9)]
    assert chunks[1].logprobs == (-4.0, -4.5)
    assert (chunks[1].prompt_tokens, chunks[1].cached_tokens, chunks[1].completion_tokens) == (2, 1, 3)
    assert chunks[1].finish is None


def test_the_last_chunk_tells_why_and_which_versions():
    spans = [{"version": "3", "start": 0, "end": 1}, {"version": "4", "start": 1, "end": 2}]
    last = ChunkReader().read(event([7, 8], 2, finish={"type": "stop", "matched": 8}, weight_versions=spans))
    assert (last.finish, last.matched) == ("stop", 8)
    assert last.spans == (VersionSpan("3", 0, 1), VersionSpan("4", 1, 2))


def test_an_aborted_request_keeps_its_tokens_but_a_refused_one_is_an_error():
    kept = ChunkReader().read(event([7], 1, finish={"type": "abort", "message": "Aborted"}))
    assert (kept.finish, kept.ids, kept.message) == ("abort", (7,), "Aborted")
    with pytest.raises(InvalidRequest, match="too long"):
        ChunkReader().read(event([], 0, finish={"type": "abort", "message": "too long", "status_code": 400}))
    with pytest.raises(InvalidRequest, match="unknown field"):
        ChunkReader().read({"error": "unknown field"})
    with pytest.raises(EngineUnavailable):
        ChunkReader().read({"error": {"message": "out of memory", "code": 500}})


def test_ids_and_logprobs_must_belong_together():
    missing = event([7, 8], 2)
    missing["meta_info"]["output_token_logprobs"].pop()
    other = event([7], 1)
    other["output_ids"] = [6]
    nothing = event([7], 1)
    nothing["meta_info"]["output_token_logprobs"][0][0] = None
    repeated = ChunkReader()  # a log-prob is missing, and equal tokens hide which
    repeated.read(event([7], 1))
    shifted = event([7, 7, 7], 3)
    shifted["meta_info"]["output_token_logprobs"].pop()
    with pytest.raises(EngineUnavailable):
        repeated.read(shifted)
    backwards = ChunkReader()
    backwards.read(event([7, 8], 2))
    for reader, bad in ((ChunkReader(), missing), (ChunkReader(), other), (ChunkReader(), nothing)):
        with pytest.raises(EngineUnavailable):
            reader.read(bad)
    with pytest.raises(EngineUnavailable):
        backwards.read(event([7], 1))
