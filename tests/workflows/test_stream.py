"""The stream's ledger under any order of events: every micro-step is in exactly one place, and counts at most once."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from workflows.messages.artifacts import ArtifactRef
from workflows.messages.batch import Accepted
from workflows.messages.group import MicroStep
from workflows.stream import Stream, StreamState

PAYLOAD = ArtifactRef(uri="p", sha256="0" * 64, bytes=1)


class StreamMachine(RuleBasedStateMachine):
    """A model of cells that sum gradients: what an update of the accepted ones would contain."""

    def __init__(self) -> None:
        super().__init__()
        self.stream = Stream(StreamState())
        self.emitted: dict[int, int] = {}
        self.out: dict[int, int] = {}
        self.sums: dict[int, set[tuple[int, int]]] = {0: set(), 1: set(), 2: set()}
        self.order: list[int] = []

    @rule(count=st.integers(0, 3))
    def add(self, count: int) -> None:
        first = len(self.stream.micro_steps)
        steps = [
            MicroStep(batch="b", index=first + n, group="g", payload=PAYLOAD, tokens=2, target_tokens=1)
            for n in range(count)
        ]
        self.stream.add(steps)
        self.stream.add(steps)  # packed twice: a retried step
        self.order += [step.index for step in steps]

    @precondition(lambda self: self.stream.pending)
    @rule()
    def take(self) -> None:
        step, emission = self.stream.take()
        assert emission == self.emitted.get(step.index, 0) + 1
        if emission == 1:
            assert step.index == self.order.pop(0)  # fresh ones come in order
        self.emitted[step.index] = emission
        self.out[step.index] = emission

    @precondition(lambda self: self.out)
    @rule(data=st.data(), cell=st.integers(0, 2))
    def done(self, data: st.DataObject, cell: int) -> None:
        index = data.draw(st.sampled_from(sorted(self.out)))
        attempt = self.out.pop(index)
        self.stream.accept(Accepted(index=index, attempt=attempt, cell=cell, boot_epoch=1))
        self.sums[cell].add((index, attempt))

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def failed(self, data: st.DataObject) -> None:
        index = data.draw(st.sampled_from(sorted(self.out)))
        del self.out[index]
        self.stream.put_back(index)

    @rule(cell=st.integers(0, 2))
    def lost(self, cell: int) -> None:
        self.stream.take_back(cell)
        self.sums[cell].clear()

    @precondition(lambda self: not self.out)
    @rule()
    def roll_over(self) -> None:
        state = self.stream.carry()
        again = StreamState.model_validate_json(state.model_dump_json())
        assert again == state
        self.stream = Stream(again)
        assert self.stream.carry() == state

    @invariant()
    def each_is_in_one_place(self) -> None:
        stream = self.stream
        places = [*stream.pending, *stream.running, *stream.accepted]
        assert sorted(places) == sorted(stream.micro_steps)
        assert stream.running == set(self.out)
        assert stream.idle == (len(stream.accepted) == len(stream.micro_steps))

    @invariant()
    def what_counts_is_what_the_cells_summed(self) -> None:
        for cell, summed in self.sums.items():
            assert self.stream.counted(cell) == sorted(summed)
        assert [done.index for done in self.stream.in_order()] == sorted(self.stream.accepted)


TestStream = StreamMachine.TestCase
TestStream.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
