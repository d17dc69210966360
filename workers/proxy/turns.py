"""The finished calls of an execution as a tree of token ids: each keeps only what it adds to the call it shares most
ids with. Bounded by the unique tokens; knows no messages."""

from collections.abc import Iterator

from infra.records.token_chain import Ids, TokenChain, common_prefix


class Turn(TokenChain):
    """A call's prompt (`prompt_length` ids) and output. `thinks`: the output has reasoning; `thought`: what
    distinguishes that reasoning from others, None if it is not known."""

    __slots__ = ("call", "followers", "prompt_length", "thinks", "thought")

    def __init__(
        self,
        call: str,
        parent: "Turn | None",
        shared: int,
        own: Ids,
        *,
        prompt_length: int,
        thinks: bool,
        thought: bytes | None,
    ) -> None:
        super().__init__(parent, shared, own)
        self.call, self.prompt_length = call, prompt_length
        self.thinks, self.thought = thinks, thought
        self.followers: tuple[Turn, ...] = ()
        """Calls that share a beginning with this one, each at its own `shared`."""

    @property
    def prompt(self) -> Ids:
        return self.ids(self.prompt_length)

    @property
    def output(self) -> Ids:
        return self.own[self.prompt_length - self.shared :]


class Turns:
    """All turns of one execution, by call."""

    def __init__(self) -> None:
        self._roots: tuple[Turn, ...] = ()
        self._by_call: dict[str, Turn] = {}

    def __len__(self) -> int:
        return len(self._by_call)

    def __getitem__(self, call: str) -> Turn:
        return self._by_call[call]

    def __contains__(self, call: str) -> bool:
        return call in self._by_call

    def add(
        self,
        call: str,
        parent: str | None,
        shared: int,
        own: Ids,
        *,
        prompt_length: int,
        thinks: bool,
        thought: bytes | None = None,
    ) -> Turn:
        """Keep a finished call: `own` are its ids behind the `shared` ones of `parent`."""
        above = self._by_call[parent] if parent is not None and shared else None
        turn = Turn(
            call,
            above,
            shared,
            own,
            prompt_length=prompt_length,
            thinks=thinks,
            thought=thought,
        )
        self._by_call[call] = turn
        if above is None:
            self._roots = (*self._roots, turn)
        else:
            above.followers = (*above.followers, turn)
        return turn

    def closest(self, ids: Ids, start: Turn | None = None, agreed: int = 0) -> tuple[Turn | None, int]:
        """A turn that shares most leading ids with `ids`, and how many they are.

        With `start`, only it and what follows it are looked at, of which `agreed` ids are known to be the same.
        """
        while start is not None and agreed < start.shared and isinstance(start.parent, Turn):
            start = start.parent
        best: Turn | None = None
        most = 0
        for turn, shared in self._agreeing(ids, (start,) if start is not None else self._roots, agreed):
            if shared > most:
                best, most = turn, shared
        return best, most

    @staticmethod
    def _agreeing(ids: Ids, turns: tuple[Turn, ...], agreed: int) -> Iterator[tuple[Turn, int]]:
        """Every turn below `turns` that shares more than its parent does, with how many ids."""
        waiting = [(turn, max(agreed, turn.shared)) for turn in turns]
        while waiting:
            turn, known = waiting.pop()
            shared = known + common_prefix(turn.own[known - turn.shared :], ids[known:])
            yield turn, shared
            for follower in turn.followers:
                at = follower.shared
                if agreed <= at <= shared and _goes_on(follower, ids):
                    waiting.append((follower, at))


def _goes_on(turn: Turn, ids: Ids) -> bool:
    at = turn.shared
    return not len(turn.own) or (at < len(ids) and turn.own[0] == ids[at])
