"""Field case 7: characters that arrive in pieces."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.tokenizer.detokenizer import ByteVocabulary, Detokenizer


@pytest.mark.parametrize(
    "pieces",
    [
        [b"\xec\x82", b"\xbc\xea\xb2", b"\xb9\xec", b"\x82\xb4"],
        [b"\xf0\x9f\x91\xa9\xe2\x80", b"\x8d\xf0\x9f", b"\x9a\x80"],
    ],
)
def test_byte_pieces_of_a_stream(chat, pieces):
    single = {chat._bytes[token]: token for token in range(chat.vocab_size) if len(chat._bytes[token]) == 1}
    stream = chat.decode_stream()
    deltas = [stream.push([single[bytes([byte])] for byte in piece]) for piece in pieces]
    text = "".join(deltas) + stream.flush()
    assert text == b"".join(pieces).decode()
    assert "\ufffd" not in text


def test_a_cut_character_is_flushed_once(chat):
    stream = chat.decode_stream()
    ids = chat.encode_text("삼")
    assert stream.push(ids[:-1]) == ""
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""


@given(st.text(max_size=60), st.data())
@settings(deadline=None, max_examples=150)
def test_pieces_add_up(chat, text, data):
    ids = chat.encode_text(text)
    stream, out = chat.decode_stream(), []
    while ids:
        size = data.draw(st.integers(1, len(ids)))
        out.append(stream.push(ids[:size]))
        ids = ids[size:]
    assert "".join(out) + stream.flush() == text
    assert all("\ufffd" not in piece for piece in out) or "\ufffd" in text


@given(st.lists(st.integers(0, 299), max_size=60), st.data())
@settings(deadline=None, max_examples=150)
def test_any_ids_in_any_pieces(chat, ids, data):
    whole = chat.decode(ids)
    stream, out = chat.decode_stream(), []
    while ids:
        size = data.draw(st.integers(1, len(ids)))
        out.append(stream.push(ids[:size]))
        ids = ids[size:]
    assert "".join(out) + stream.flush() == whole


def test_control_tokens_and_unknown_ids_are_silent():
    vocabulary = ByteVocabulary({"a": 0, "<|end|>": 1, "<tag é>": 2}, frozenset({1}), frozenset({2}))
    stream = Detokenizer(vocabulary)
    assert stream.push([0, 1, 2, 99]) == "a<tag é>"
