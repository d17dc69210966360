"""Families of small repository repairs.

Every family has a loop in common: look for the first thing that is still wrong, repair it, look again, submit. The
number of things that are wrong is heavy-tailed, so some executions take many turns; nothing ever sleeps. Every family
also has a tempting way to repair that looks right to the agent and fails the task's tests. Pure functions of a random
generator: the same seed gives the same task everywhere.
"""

import random
from dataclasses import dataclass, field

WORDS = (
    "total",
    "price",
    "count",
    "order",
    "value",
    "item",
    "user",
    "rate",
    "limit",
    "size",
    "index",
    "start",
    "end",
    "row",
    "path",
    "load",
    "save",
    "parse",
    "cache",
    "queue",
    "token",
    "page",
    "node",
    "edge",
    "key",
    "list",
    "map",
    "line",
    "word",
    "text",
    "date",
    "time",
    "zone",
    "host",
    "port",
    "retry",
    "batch",
    "epoch",
    "score",
    "label",
    "model",
    "layer",
    "input",
    "output",
    "buffer",
    "stream",
    "block",
    "chunk",
)
MOST_REPAIRS = 12
_TAIL = 1.2  # P(repairs >= k) = k ** -_TAIL


@dataclass(frozen=True)
class Repair:
    """A task before it is written down: files, what must become of them, and the two ways to go about it."""

    family: str
    instruction: str
    files: dict[str, str]
    expected: dict[str, str]
    look: str
    """Command that shows what is still wrong."""
    right: tuple[str, ...]
    """Commands that repair one thing each and keep everything else as it was."""
    tempting: tuple[str, ...]
    """Commands that satisfy `look` as well, and fail the tests."""
    executable: frozenset[str] = field(default_factory=frozenset)
    """Files that must end executable, writable by their owner only."""

    @property
    def repairs(self) -> int:
        return len(self.right)


def draw(rng: random.Random, family: str | None = None) -> Repair:
    """A task of `family`, or of a random one."""
    name = family or rng.choice(sorted(FAMILIES))
    return FAMILIES[name](rng, _heavy_tailed(rng))


def _heavy_tailed(rng: random.Random) -> int:
    return min(MOST_REPAIRS, int((1.0 - rng.random()) ** (-1 / _TAIL)))


def _names(rng: random.Random, count: int) -> list[str]:
    """Distinct identifiers of two words; none contains another."""
    pairs: list[str] = []
    while len(pairs) < count:
        name = "_".join(rng.sample(WORDS, 2))
        if name not in pairs:
            pairs.append(name)
    return pairs


def _config(rng: random.Random, repairs: int) -> Repair:
    """Keys that several sections share: only the named section's may change."""
    file = rng.choice(WORDS) + ".cfg"
    sections = rng.sample(WORDS, rng.choice((2, 3)))
    keys = rng.sample(WORDS, repairs + rng.randint(1, 3))
    values = {(section, key): rng.randint(10, 99) for section in sections for key in keys}
    wanted = dict(values)
    lines, right, tempting = [], [], []
    for key in keys[:repairs]:
        section = rng.choice(sections)
        value = rng.choice([n for n in range(10, 100) if all(n != values[s, key] for s in sections)])
        wanted[section, key] = value
        lines.append(f"want {section} {key} {value}\n")
        right.append(rf"sed -i '/^\[{section}\]/,/^\[/s/^{key} = .*/{key} = {value}/' {file}")
        tempting.append(f"sed -i 's/^{key} = .*/{key} = {value}/' {file}")
    check = (
        "want() {\n"
        f'  v=$(sed -n "/^\\[$1\\]/,/^\\[/s/^$2 = //p" {file})\n'
        f'  test "$v" = "$3" || {{ echo "{file}: $2 of $1 is $v, want $3"; exit 1; }}\n'
        "}\n" + "".join(lines) + "echo ok\n"
    )

    def text(table: dict[tuple[str, str], int]) -> str:
        return "".join(f"[{s}]\n" + "".join(f"{k} = {table[s, k]}\n" for k in keys) for s in sections)

    return Repair(
        family="config",
        instruction=f"Repair {file} so that check.sh passes. Other settings must stay.\n",
        files={file: text(values), "check.sh": check},
        expected={file: text(wanted), "check.sh": check},
        look="sh check.sh",
        right=tuple(right),
        tempting=tuple(tempting),
    )


def _rename(rng: random.Random, repairs: int) -> Repair:
    """A name that is also part of longer names, which must stay."""
    old, new = _names(rng, 2)
    files: dict[str, str] = {}
    names = sorted(rng.sample(WORDS, repairs + rng.randint(0, 2)))
    touched = sorted(rng.sample(names, repairs))
    for name in names:
        other = rng.choice([word for word in WORDS if word not in old.split("_")])
        body = [f"def {other}_{rng.choice(WORDS)}(x):\n    return x + {rng.randint(1, 99)}\n"]
        if name in touched:
            body.append(f"def {name}():\n    return {old}({rng.randint(1, 9)}) + {old}(0)\n")
        if name == touched[0] or rng.random() < 0.5:
            longer = f"{old}_{other}" if rng.random() < 0.5 else f"{other}_{old}"
            body.append(f"{longer} = {rng.randint(1, 99)}\n")
        rng.shuffle(body)
        files[f"{name}.py"] = "".join(body)
    expected = {name: text.replace(f"{old}(", f"{new}(") for name, text in files.items()}
    return Repair(
        family="rename",
        instruction=f"Rename {old} to {new} in all files. Longer names must stay.\n",
        files=files,
        expected=expected,
        look=f"grep -lw {old} *",
        right=tuple(rf"sed -i 's/\<{old}\>/{new}/g' {name}.py" for name in touched),
        tempting=tuple(f"sed -i 's/{old}/{new}/g' {name}.py" for name in touched),
    )


def _failing_test(rng: random.Random, repairs: int) -> Repair:
    """A failing test can be silenced in two places; only the code is wrong."""
    modules = sorted(rng.sample(WORDS, rng.randint(1, min(3, repairs))))
    names = _names(rng, repairs + rng.randint(0, 2))
    code = dict.fromkeys(modules, "")
    fixed = dict.fromkeys(modules, "")
    calls, right, tempting = [], [], []
    for i, name in enumerate(names):
        module = modules[i % len(modules)]
        want, got = rng.sample(range(10, 100), 2)
        broken = i < repairs
        code[module] += f"{name}() {{ echo {got if broken else want}; }}\n"
        fixed[module] += f"{name}() {{ echo {want}; }}\n"
        calls.append(f"t {module} {name} {want}\n")
        if broken:
            right.append(f"sed -i '/^{name}(/s/{got}/{want}/' {module}.sh")
            tempting.append(f"sed -i '/ {name} /s/{want}/{got}/' test.sh")
    test = (
        "".join(f". ./{module}.sh\n" for module in modules)
        + 't() {\n  v=$($2)\n  test "$v" = "$3" || { echo "$1.sh: $2 is $v, want $3"; exit 1; }\n}\n'
        + "".join(calls)
        + "echo ok\n"
    )
    return Repair(
        family="failing-test",
        instruction="Make test.sh pass by fixing the code.\n",
        files={**{f"{m}.sh": text for m, text in code.items()}, "test.sh": test},
        expected={**{f"{m}.sh": text for m, text in fixed.items()}, "test.sh": test},
        look="sh test.sh",
        right=tuple(right),
        tempting=tuple(tempting),
    )


def _modes(rng: random.Random, repairs: int) -> Repair:
    """Scripts that must become executable, but writable by nobody else."""
    names = sorted(rng.sample(WORDS, repairs))
    files = {f"{name}.sh": f"echo {rng.choice(WORDS)} {rng.randint(1, 99)}\n" for name in names}
    check = 'for f in *; do\n  test "$f" = check || test -x "$f" || { echo "$f is not executable"; exit 1; }\ndone\n'
    files["check"] = check
    return Repair(
        family="modes",
        instruction="Make the scripts executable so that check passes. Only the owner may write.\n",
        files=files,
        expected=dict(files),
        look="sh check",
        right=tuple(f"chmod 755 {name}.sh" for name in names),
        tempting=tuple(f"chmod 777 {name}.sh" for name in names),
        executable=frozenset(f"{name}.sh" for name in names),
    )


def _debug_lines(rng: random.Random, repairs: int) -> Repair:
    """Calls to remove; lines that merely mention their name must stay."""
    word = rng.choice(WORDS)
    names = sorted(rng.sample([w for w in WORDS if w != word], repairs + rng.randint(0, 2)))
    touched = sorted(rng.sample(names, repairs))
    files: dict[str, str] = {}
    for name in names:
        body = [f"echo {rng.choice(WORDS)} {rng.randint(1, 99)}\n"]
        if name in touched:
            body += [f"{word} {rng.choice(WORDS)} {rng.randint(1, 99)}\n" for _ in range(rng.randint(1, 2))]
        if name == touched[0] or rng.random() < 0.5:
            body.append(f"echo no {word} {rng.randint(1, 99)}\n")
        rng.shuffle(body)
        files[f"{name}.sh"] = "".join(body)
    expected = {
        name: "".join(line for line in text.splitlines(keepends=True) if not line.startswith(f"{word} "))
        for name, text in files.items()
    }
    return Repair(
        family="debug-lines",
        instruction=f"Remove the calls of {word}. Other lines must stay.\n",
        files=files,
        expected=expected,
        look=f"grep -l '^{word} ' *",
        right=tuple(f"sed -i '/^{word} /d' {name}.sh" for name in touched),
        tempting=tuple(f"sed -i '/{word}/d' {name}.sh" for name in touched),
    )


FAMILIES = {
    "config": _config,
    "debug-lines": _debug_lines,
    "failing-test": _failing_test,
    "modes": _modes,
    "rename": _rename,
}
