"""Frames between stages: what counts as the other side being gone."""

from multiprocessing import Pipe
from threading import Event

import pytest

from workers.cell.training.pipeline.orders import Frames, Order, Report


def test_a_stage_that_hangs_is_given_up():
    ours, theirs = Pipe()
    lost = Event()
    frames = Frames(ours, Report, lost=lost.set)
    theirs.send_bytes(Report(op="weights").model_dump_json().encode())
    theirs.send_bytes(b"data")
    assert frames.receive(10.0) == (Report(op="weights"), b"data")
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
        frames.receive(10.0)
    assert lost.wait(10.0)
    frames.close()


def test_an_end_that_was_asked_for_is_no_loss():
    ours, theirs = Pipe()
    lost = Event()
    frames = Frames(ours, Report, lost=lost.set)
    frames.close()
    theirs.close()
    with pytest.raises(EOFError):
        frames.receive(10.0)
    assert not lost.is_set()
