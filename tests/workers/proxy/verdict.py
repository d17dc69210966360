"""What must be true at the end of a drill: of the proxy, of its engines, and of every record."""

import json

from infra.records.calls import calls_of, segments_of
from tests.workers.proxy.conftest import execution_name
from workers.cell.rollout.paced.tokens import advance, chain


class Verdict:
    """`stations`: the engines with the truth about them; `heard`: what clients read whole; `late_aborts`: whether an
    engine was told to carry aborts out late."""

    def __init__(self, *, proxy, stations, chat, harnesses, heard, late_aborts):
        self.proxy, self.stations, self.chat = proxy, stations, chat
        self.harnesses, self.heard, self.late_aborts = harnesses, heard, late_aborts

    def check(self, database):
        table = self.proxy.table
        assert not table.waiters
        assert not self.proxy.aborts._tasks
        for station in self.stations:
            record = table.engines[station.name]
            assert not record.segments, f"{station.name} holds segments"
            assert not record.unsettled, f"{station.name} is unsettled"
            assert not station.engine.running, f"{station.name} runs for nobody"
            assert not station.engine.waiting, f"{station.name} holds a request of nobody"
        for execution in self.proxy.executions.all():
            assert not execution.running
        with database.connect() as connection:
            for member in range(self.harnesses):
                calls = calls_of(connection, execution_name(member))
                answers = [call for call in calls if call.state in ("finished", "undelivered")]
                texts = [self.check_answer(call, segments_of(connection, call.call)) for call in answers]
                for call in calls:
                    self.check_segments(call, segments_of(connection, call.call))
                for body, text, finish in self.heard.get(execution_name(member), ()):
                    limit = json.loads(body)["max_tokens"]
                    assert (text, finish) in texts, f"heard {text!r}, recorded {texts}"
                    assert len(self.chat.encode_text(text)) <= 40 * limit

    def check_answer(self, call, segments):
        """The recorded answer is what the model says undisturbed; returns the text and finish it means."""
        imposed = call.fields["imposed"]
        budget, stops = imposed["budget"], imposed["stop"]
        ids, logprobs, text, stopped = self.undisturbed(call.prompt_ids, budget, stops)
        assert list(call.output_ids) == ids, f"call {call.call}: {list(call.output_ids)} for {ids}"
        gaps = [abs(a - b) for a, b in zip(call.output_logprobs, logprobs, strict=True)]
        assert max(gaps, default=0) < 1e-5
        spans = call.version_spans
        assert sum(count for _, count in spans) == len(ids)
        assert [version for version, _ in spans] == sorted(version for version, _ in spans)
        assert sum(segment["output_tokens"] for segment in segments) == len(ids)
        said_so_far = 0
        for segment in segments:
            versions = call.versions[said_so_far : said_so_far + segment["output_tokens"]]
            truth = self.stations[segment["cell"]].truth.get(segment["rid"], [])
            # Of tokens that came in one event with the first newer one, nobody may ever have said which is which.
            wrong = [pair for pair in zip(versions, truth, strict=False) if pair[0] != pair[1]]
            story = f"{segment['rid']}: recorded {versions}, and it was {truth}"
            assert len(wrong) <= 3 * (len({segment["version"], *truth}) - 1), story
            assert all(mine < real for mine, real in wrong), story
            whole = self.stations[segment["cell"]].ends.get(segment["rid"]) == segment["ended"]
            assert not (wrong and whole), story
            mixed = segment["mixed_kv_tokens"]
            assert all(version == segment["version"] for version in versions[: len(versions) - mixed])
            assert all(version > segment["version"] for version in versions[len(versions) - mixed :])
            assert segment["prompt_tokens"] == len(call.prompt_ids) + said_so_far
            said_so_far += segment["output_tokens"]
        assert call.finish == ("stop" if stopped else "length")
        return text, call.finish

    def check_segments(self, call, segments):
        """Every request that was sent has ended at its engine: by itself, by exactly one abort, or with its engine."""
        assert all(segment["ended"] for segment in segments)
        for segment in segments:
            station, rid = self.stations[segment["cell"]], segment["rid"]
            asked, how = station.aborts.get(rid, []), station.ends.get(rid)
            story = f"{rid} of {call.call}: aborts {asked}, ended {how} there, {segment['ended']} here"
            assert asked.count("it") <= 1, story
            if rid not in station.died:
                assert how != "abort" or asked.count("it") == 1, story
                assert how == "abort" or not asked.count("it") or self.late_aborts, story  # a late one finds it ended
            assert asked.count("no more") <= 1, story
            assert "it" not in asked or asked[-1] == "it", story

    def undisturbed(self, prompt, budget, stops):
        engine = self.stations[0].engine
        state, ids, logprobs = chain(prompt)[-1], [], []
        while len(ids) < budget:
            token, value = engine.voice.next_token(engine.checksum, "", state, engine.vocabulary.ends)
            ids.append(token)
            logprobs.append(value)
            state = advance(state, token)
            text = self.chat.decode(ids)
            at = min((text.find(stop) for stop in stops if stop in text), default=-1)
            if at >= 0:
                return ids, logprobs, text[:at], True
            if token in engine.vocabulary.ends:
                return ids, logprobs, text, True
        return ids, logprobs, self.chat.decode(ids), False
