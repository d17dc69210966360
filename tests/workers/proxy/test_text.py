"""A growing answer, and what a request has so far: random cuts lose nothing and repeat nothing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.tokenizer import ChatTokenizer
from workers.proxy.answer import Answers
from workers.proxy.continuation import Continuation, Piece, check_piece
from workflows.messages.errors import EngineUnavailable


@pytest.fixture(scope="module")
def chat(folder):
    return ChatTokenizer(folder)


def shown_of(events):
    return "".join(event.text for event in events)


TEXTS = st.text(alphabet="abENDx삼👩 \n", max_size=40)


@settings(max_examples=150, deadline=None)
@given(text=TEXTS, stops=st.lists(st.sampled_from(["END", "ab", "x\n", "삼b"]), max_size=2), data=st.data())
def test_any_cut_gives_the_same_answer(chat, text, stops, data):
    """An answer cut into segments, and the segments into chunks, at random; versions and log-probs stay aligned."""
    ids = chat.encode_text(text)
    answer, so_far = Answers(chat).begin([], stops=stops), Continuation([1, 2, 3], len(ids) + 1)
    shown, at = "", 0
    while at < len(ids) and not answer.stopped:
        size = data.draw(st.integers(1, len(ids) - at))
        piece = Piece(tuple(ids[at : at + size]), tuple(-float(i) for i in range(at, at + size)), (at // 5,) * size)
        check_piece(piece, so_far.remaining, chat.vocab_size)
        assert so_far.next_input == [1, 2, 3, *ids[:at]]
        events, used = answer.push(piece.ids)
        so_far.accept(piece, only=used)
        shown, at = shown + shown_of(events), at + size
    shown += shown_of(answer.finish())
    cuts = [text.find(stop) for stop in stops if stop in text]
    assert shown == (text[: min(cuts)] if cuts else text)
    assert so_far.ids == ids[: len(so_far.ids)]
    assert so_far.logprobs == [-float(i) for i in range(len(so_far.ids))]
    assert sum(count for _, count in so_far.spans) == len(so_far.ids) == len(so_far.logprobs)
    if not cuts:
        assert so_far.ids == ids
    else:  # up to the very token that completes the stop string
        assert any(stop in chat.decode(so_far.ids) for stop in stops)
        assert not any(stop in chat.decode(so_far.ids[:-1]) for stop in stops)


def test_what_may_become_a_stop_string_is_held_back(chat):
    answer = Answers(chat).begin([], stops=["END"])
    pieces = [shown_of(answer.push(chat.encode_text(piece))[0]) for piece in ("aE", "N", "x", "E")]
    assert pieces == ["a", "", "ENx", ""]
    assert shown_of(answer.finish()) == "E"
    assert not answer.stopped


def test_spans_are_in_order_and_may_go_back():
    """Field case 24: the record says what happened, also what placement would never do."""
    so_far = Continuation([1], 15)
    for version in (3, 4, 3):
        so_far.accept(Piece((7,) * 5, (-1.0,) * 5, (version,) * 5))
    assert so_far.spans == [(3, 5), (4, 5), (3, 5)]
    assert so_far.newest_version == 4


def test_the_engines_last_word_on_versions():
    so_far = Continuation([1], 20)
    so_far.accept(Piece((7,) * 4, (-1.0,) * 4, (3,) * 4))
    so_far.accept(Piece((7,) * 6, (-1.0,) * 6, (5,) * 6))
    so_far.restamp(4, [4, 4, 5, 5, 5, 5])
    assert so_far.spans == [(3, 4), (4, 2), (5, 4)]
    with pytest.raises(EngineUnavailable):
        so_far.restamp(4, [5])


@pytest.mark.parametrize(
    "piece",
    [
        Piece((1, 2), (-1.0,), (1, 1)),
        Piece((1, 2), (-1.0, -1.0), (1,)),
        Piece((1, 2, 3), (-1.0,) * 3, (1,) * 3),
        Piece((1, 10), (-1.0,) * 2, (1,) * 2),
        Piece((-1,), (-1.0,), (1,)),
    ],
)
def test_what_cannot_be_trusted(piece):
    with pytest.raises(EngineUnavailable):
        check_piece(piece, remaining=2, vocab_size=10)
