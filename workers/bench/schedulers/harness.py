"""What stands for harnesses in a comparison: asks the model as the plan says, and waits as tools would.

A harness of its own process costs a processor second to launch, follow and grade, whatever its pace; dozens of those
would measure two cores instead of a scheduler. So these run in the host's event loop, over real connections to the
proxy, each with its execution's token.
"""

import asyncio
import json
from collections.abc import Sequence

FILLER = "~"
"""One token of the workload's tokenizer, however often it is repeated."""

PlannedTurn = tuple[int, int, float]
"""Tokens of the message, tokens of the answer, seconds of the tool after it."""


async def carry_out(endpoint: str, turns: Sequence[PlannedTurn]) -> int:
    """One conversation at ``http://host:port/x/<token>``; returns how many calls it made. Raises ConnectionError."""
    host, port, path = address(endpoint)
    messages: list[dict[str, str]] = []
    for asked, answer, tool_seconds in turns:
        messages.append({"role": "user", "content": f"say {answer} {FILLER * asked}"})
        body = {"model": "policy", "messages": messages, "max_tokens": answer + 8}
        messages.append({"role": "assistant", "content": said(await post(host, port, path, json.dumps(body).encode()))})
        await asyncio.sleep(tool_seconds)
    return len(turns)


def address(endpoint: str) -> tuple[str, int, str]:
    """Host, port and path of the chat completions below `endpoint`."""
    host, _, rest = endpoint.removeprefix("http://").partition("/")
    name, _, port = host.partition(":")
    return name, int(port or 80), f"/{rest}/v1/chat/completions"


async def post(host: str, port: int, path: str, body: bytes) -> bytes:
    """One request on a connection of its own; the answer's body. Raises ConnectionError when it is not a success."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(head.encode() + body)
        answer = await reader.read()
    finally:
        writer.close()
    headers, _, content = answer.partition(b"\r\n\r\n")
    if b" 200 " not in headers.split(b"\r\n", 1)[0]:
        raise ConnectionError(f"the model answered {headers[:200]!r} {content[:500]!r}")
    return unchunked(content) if b"transfer-encoding: chunked" in headers.lower() else content


def unchunked(content: bytes) -> bytes:
    """The body of a chunked answer."""
    body, rest = b"", content
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size.split(b";")[0], 16)
        if not length:
            break
        body, rest = body + rest[:length], rest[length + 2 :]
    return body


def said(answer: bytes) -> str:
    return json.loads(answer)["choices"][0]["message"]["content"] or ""
