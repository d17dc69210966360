"""The tree of token ids against brute force."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.records.token_chain import TokenChain
from workers.proxy.turns import Turns

few = st.lists(st.integers(0, 2), max_size=6)


def shared(one, other):
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@given(st.lists(st.tuples(few, few), max_size=12), few)
@settings(deadline=None, max_examples=300)
def test_the_closest_call_shares_most(calls, asked):
    turns, whole = Turns(), {}
    for number, (prompt, output) in enumerate(calls):
        ids = np.asarray(prompt, dtype=np.int32)
        parent, agreed = turns.closest(ids)
        expected = max((shared(known, prompt) for known in whole.values()), default=0)
        assert agreed == expected
        name = str(number)
        own = np.concatenate([ids[agreed:], np.asarray(output, dtype=np.int32)])
        turn = turns.add(name, parent and parent.call, agreed, own, prompt_length=len(prompt), thinks=False)
        whole[name] = [*prompt, *output]
        assert turn.ids().tolist() == whole[name]
        assert turn.prompt.tolist() == prompt
        assert turn.output.tolist() == output
    found, agreed = turns.closest(np.asarray(asked, dtype=np.int32))
    lengths = {name: shared(known, asked) for name, known in whole.items()}
    most = max(lengths.values(), default=0)
    assert agreed == most
    if most:
        assert lengths[found.call] == most
    # Below one call, from some point on, nothing is overlooked either.
    for name, known in whole.items():
        start = shared(known, asked)
        again, agreed = turns.closest(np.asarray(asked, dtype=np.int32), turns[name], start)
        assert agreed >= start
        assert again is None or whole[again.call][:agreed] == asked[:agreed]


def test_a_chain_is_as_long_as_its_parent_allows():
    parent = TokenChain(None, 0, [1, 2, 3])
    assert TokenChain(parent, 2, [9]).ids().tolist() == [1, 2, 9]
    assert TokenChain(parent, 2, [9]).ids(2, then=[7, 8]).tolist() == [1, 2, 7, 8]
    for shared_ids, above in ((4, parent), (1, None), (-1, parent)):
        with pytest.raises(ValueError, match="shared"):
            TokenChain(above, shared_ids, [])
