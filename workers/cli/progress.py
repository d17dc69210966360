"""How far a long computation is: a bar on a terminal, a line a step elsewhere, on standard error."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Tell = Callable[[str, int, int | None], None]
"""What is being done or was done last, how many steps are done, of how many if that is known."""

_LINES = 20
"""So many lines at most where every step would be too many."""


@contextmanager
def progress(what: str, total: int | None, *, hidden: bool) -> Iterator[Tell]:
    """Yields the function to tell of steps. `hidden`: nothing is shown."""
    console = Console(stderr=True)
    if hidden:
        yield lambda _text, _done, _total: None
    elif console.is_terminal:
        columns = (TextColumn("{task.description:40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(what, total=total)
            yield lambda text, done, whole: bar.update(task, completed=done, total=whole, description=text)
    else:
        yield _lines(console, what)


def _lines(console: Console, what: str) -> Tell:
    started = time.monotonic()
    shown = 0

    def tell(text: str, done: int, total: int | None) -> None:
        nonlocal shown
        stride = max(1, (total or 1) // _LINES)
        if done - shown < stride and done != total:
            return
        shown = done
        of = f" of {total}" if total else ""
        line = f"{what}: {done}{of} done ({text}), {time.monotonic() - started:.0f} s"
        console.print(line, soft_wrap=True, highlight=False, markup=False)

    return tell
