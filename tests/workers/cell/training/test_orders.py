"""Frames between stages: what counts as the other side being gone."""

from multiprocessing import Pipe
from threading import Event, Thread

import pytest

from workers.cell.training.pipeline import orders
from workers.cell.training.pipeline.orders import Frames, Order, Report

SELDOM = 3600.0
"""Seconds between looks: those of a test are its own."""


def test_a_stage_that_hangs_is_given_up():
    ours, theirs = Pipe()
    lost = Event()
    frames = Frames(ours, Report, lost=lost.set)
    theirs.send_bytes(Report(op="weights").model_dump_json().encode())
    theirs.send_bytes(b"data")
    assert frames.receive(120.0) == (Report(op="weights"), b"data")
    assert not lost.is_set()
    with pytest.raises(EOFError):
        frames.receive(0.01)
    assert lost.is_set()
    with pytest.raises(EOFError):
        frames.receive()  # and it stays so
    frames.close()


@pytest.mark.parametrize("frame", [b"no json", Order(op="look").model_dump_json().encode(), b"\xff"])
def test_a_frame_that_cannot_be_understood_is_a_loss(frame):
    ours, theirs = Pipe()
    lost = Event()
    frames = Frames(ours, Report, lost=lost.set)
    theirs.send_bytes(frame)
    with pytest.raises(EOFError):
        frames.receive(120.0)
    assert lost.wait(120.0)
    frames.close()


def test_an_end_that_was_asked_for_is_no_loss():
    ours, theirs = Pipe()
    lost = Event()
    frames = Frames(ours, Report, lost=lost.set)
    frames.close()
    theirs.close()
    with pytest.raises(EOFError):
        frames.receive(120.0)
    assert not lost.is_set()


def beat() -> Report:
    return Report(op="beat", is_computing=True, moved=3)


def until(condition) -> None:
    """Wait for a thread that has something to do; the test's own limit ends it."""
    while not condition():
        Event().wait(0.001)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 16, 20])
def test_data_arrives_whole_however_many_pieces_it_takes(size, monkeypatch):
    monkeypatch.setattr(orders, "PIECE_BYTES", 8)
    ours, theirs = Pipe()
    frames, others = Frames(ours, Report, lost=Event().set), Frames(theirs, Order, lost=Event().set)
    data = bytes(range(size))
    for number in range(2):
        others.send(Report(op="gradient", number=number), data)
    assert [frames.receive(120.0) for _ in range(2)] == [(Report(op="gradient", number=n), data) for n in range(2)]
    frames.close()
    others.close()


def test_a_stage_that_is_silent_is_given_up_and_one_that_beats_is_not():
    ours, theirs = Pipe()
    lost = Event()
    frames = Frames(ours, Report, lost=lost.set, quiet_looks=3, beat_seconds=SELDOM)
    stage = Frames(theirs, Order, lost=Event().set, beat=beat, beat_seconds=SELDOM)
    for number in range(9):  # however long it computes
        assert stage.look()
        until(lambda number=number: frames._heard == 2 * (number + 1))
        assert frames.look()
    assert frames.last_beat == beat()
    assert frames.waiting == 0, "a beat is no answer"
    assert [frames.look() for _ in range(3)] == [True, True, False]
    assert lost.is_set()
    with pytest.raises(EOFError):
        frames.receive(120.0)
    frames.close()
    stage.close()


def test_sending_to_one_that_does_not_read_ends_although_it_beats():
    """Its process lives; the thread that should read does not."""
    ours, theirs = Pipe()
    lost = Event()
    frames = Frames(ours, Report, lost=lost.set, beat=lambda: Order(op="beat"), quiet_looks=2, beat_seconds=SELDOM)

    def send() -> None:
        with pytest.raises(OSError, match=r"."):
            frames.send(Order(op="weights"), bytes(1 << 22))

    sending = Thread(target=send)
    sending.start()
    until(frames._sending.locked)
    looks = []
    for _ in range(3):
        theirs.send_bytes(beat().model_dump_json().encode())
        theirs.send_bytes(b"")
        looks.append(frames.look())
    assert (looks, lost.is_set()) == ([True, True, False], True)
    theirs.close()  # as the end of the process does that `lost` asks for
    sending.join(120.0)
    assert not sending.is_alive()
    frames.close()


def test_a_beat_never_waits_for_room():
    ours, theirs = Pipe()
    frames = Frames(ours, Report, lost=Event().set, beat=lambda: Order(op="beat"), beat_seconds=SELDOM)
    for _ in range(20_000):  # far more than fits
        assert frames.look()
    frames.close()
    theirs.close()
    assert not frames.look()
