"""The tools of a responses request: functions, free-form tools, and namespaces of both."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from workers.proxy.dialect import wire
from workflows.messages.errors import InvalidRequest

_CUSTOM_INPUT = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Offered:
    """The tools of a request. `served`: as chat templates take them. `customs`: names of the free-form ones, which
    became functions with one text, `input`. `homes`: the namespace and the name there of tools that have one.
    `unserved`: kinds that only the real API can run."""

    served: tuple[Mapping[str, Any], ...] = ()
    customs: frozenset[str] = frozenset()
    homes: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    unserved: tuple[str, ...] = ()

    def name_of(self, namespace: Any, name: str) -> str:
        """What the model knows a tool by."""
        return next((known for known, home in self.homes.items() if home == (namespace, name)), name)


def offered(tools: Any) -> Offered:
    """A tool in a namespace keeps its name where no other tool has it, else the namespace stands before it."""
    flat = list(_flat(tools or [], "tools", None))
    names = Counter(tool.get("name") for _, tool, _ in flat if tool["type"] in ("function", "custom"))
    served: list[Mapping[str, Any]] = []
    customs: set[str] = set()
    homes: dict[str, tuple[str, str]] = {}
    unserved: list[str] = []
    for where, tool, namespace in flat:
        kind, name = tool["type"], tool.get("name")
        if kind not in ("function", "custom"):
            unserved.append(kind)
            continue
        known = f"{namespace}.{name}" if namespace and names[name] > 1 else name
        parameters = _CUSTOM_INPUT if kind == "custom" else tool.get("parameters")
        served.append(wire.function_tool(known, tool.get("description"), parameters, where))
        if kind == "custom":
            customs.add(str(known))
        if namespace:
            homes[str(known)] = (namespace, str(name))
    return Offered(tuple(served), frozenset(customs), homes, tuple(unserved))


def _flat(tools: Any, where: str, namespace: str | None) -> Iterator[tuple[str, Mapping[str, Any], str | None]]:
    """Every tool with its place and its namespace."""
    for i, tool in enumerate(tools if isinstance(tools, list) else [None]):
        if not isinstance(tool, Mapping) or not isinstance(tool.get("type"), str):
            raise InvalidRequest("a tool with a type is expected", field=f"{where}.{i}")
        if tool["type"] != "namespace":
            yield f"{where}.{i}", tool, namespace
        elif namespace is not None or not isinstance(tool.get("name"), str):
            raise InvalidRequest("a namespace needs a name, and stands at the top", field=f"{where}.{i}")
        else:
            yield from _flat(tool.get("tools"), f"{where}.{i}.tools", tool["name"])
