"""The harness of a comparison: reads its plan from its workspace, asks the model, waits as its tools would.

Run as ``python -S -E harness.py`` by the adapter `command`. Light on purpose, the standard library's small modules
alone: many of them share two cores with everything that is measured.
"""

import json
import os
import socket
import sys
import time

FILLER = "~"
"""One token of the workload's tokenizer, however often it is repeated."""


def main() -> None:
    workspace = os.environ["GYRE_WORKSPACE"]
    member = int(os.path.basename(os.path.dirname(workspace)))
    with open(os.path.join(workspace, "plan.json"), encoding="utf-8") as file:
        turns = json.load(file)[member]
    host, port, path = endpoint(os.environ["OPENAI_BASE_URL"])
    messages: list[dict[str, str]] = []
    for asked, answer, tool_seconds in turns:
        messages.append({"role": "user", "content": f"say {answer} {FILLER * asked}"})
        body = {"model": os.environ["OPENAI_MODEL"], "messages": messages, "max_tokens": answer + 8}
        messages.append({"role": "assistant", "content": said(post(host, port, path, json.dumps(body).encode()))})
        time.sleep(tool_seconds)


def endpoint(url: str) -> tuple[str, int, str]:
    """Host, port and path of the chat completions below an ``http://host:port/...`` URL."""
    host, _, rest = url.removeprefix("http://").partition("/")
    name, _, port = host.partition(":")
    return name, int(port or 80), f"/{rest}/chat/completions"


def post(host: str, port: int, path: str, body: bytes) -> bytes:
    """One request on a connection of its own; the answer's body. Exits when it is not a success."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    with socket.create_connection((host, port)) as connection:
        connection.sendall(head.encode() + body)
        parts = []
        while part := connection.recv(1 << 16):
            parts.append(part)
    headers, _, content = b"".join(parts).partition(b"\r\n\r\n")
    if b" 200 " not in headers.split(b"\r\n", 1)[0]:
        sys.exit(f"the model answered {headers[:200]!r} {content[:500]!r}")
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


if __name__ == "__main__":
    main()
