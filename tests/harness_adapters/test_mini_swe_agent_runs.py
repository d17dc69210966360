"""The real mini-swe-agent, both clients, against a scripted endpoint."""

import json
import os
import signal
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from harness_adapters import LaunchContext
from harness_adapters.mini_swe_agent import MiniSweAgent
from infra.demo import dialogue
from infra.tokenizer import ChatTokenizer, canonical
from tests.infra.tokenizer.conftest import write_folder
from workflows.messages.burst import HarnessChoice
from workflows.messages.execution import EndReason

HARNESS_ROOT = Path(__file__).resolve().parents[2] / "var" / "harness"
INSTRUCTION = "Fix é 😀\u2028 {{it}}, please.\n\n"
COMMANDS = ["cat a.txt; false", "printf 'x\\ny'; printf '\\360' >&2", "printf '<|im_end|>%0500d' 7", dialogue.SUBMIT]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Endpoint(ThreadingHTTPServer):
    """Answers call n of a conversation with `script[n]`: a text, (status, body), "drop", or "stall"."""

    daemon_threads = True

    def __init__(self, script):
        super().__init__(("127.0.0.1", 0), Handler)
        self.script, self.requests, self.stalled = list(script), [], threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.requests.append((self.path, dict(self.headers), body))
        step = self.server.script[min(len(self.server.requests), len(self.server.script)) - 1]
        if step == "stall":
            self.server.stalled.set()
            time.sleep(60)
            return
        if step == "drop":
            self.close_connection = True
            return
        status, reply = step if isinstance(step, tuple) else (200, completion(step))
        data = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


def completion(text):
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "policy",
        "choices": [choice],
        "usage": usage,
    }


@pytest.fixture(scope="module", autouse=True)
def installed():
    adapter = MiniSweAgent()
    adapter.install(HARNESS_ROOT)
    adapter.check(HarnessChoice(), HARNESS_ROOT)


@pytest.fixture(params=["thin", "stock"])
def client(request):
    return request.param


@pytest.fixture
def endpoint():
    servers = []

    def start(script):
        servers.append(Endpoint(script))
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def start(tmp_path, client, server):
    context = LaunchContext(
        execution="r/execution/b/0000/00",
        instruction=INSTRUCTION,
        workspace=tmp_path / "workspace",
        home=tmp_path / "home",
        endpoint=f"http://127.0.0.1:{server.server_port}/x/abc",
        token="secret-token",
        harness_root=HARNESS_ROOT,
        choice=HarnessChoice(client=client),
    )
    for folder in (context.workspace, context.home):
        folder.mkdir()
    (context.workspace / "a.txt").write_text("hello\n")
    # A module of the workspace must not be taken for the library's.
    (context.workspace / "queue.py").write_text("raise RuntimeError('imported from the workspace')\n")
    plan = MiniSweAgent().launch(context)
    for name, text in plan.files.items():
        (context.home / name).write_text(text)
    process = subprocess.Popen(
        plan.argv,
        env=plan.environment,
        cwd=plan.cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    return context, process


def run(tmp_path, client, server):
    context, process = start(tmp_path, client, server)
    output, _ = process.communicate(timeout=300)
    return context, MiniSweAgent().outcome(context, process.returncode), output.decode()


def expected_conversation(tmp_path):
    """What the demonstrations would have been, played in a workspace of their own."""
    workspace = tmp_path / "demonstration"
    workspace.mkdir()
    (workspace / "a.txt").write_text("hello\n")
    messages = dialogue.opening(INSTRUCTION)
    for command in COMMANDS[:-1]:
        messages += [dialogue.answer(command), dialogue.observation(*dialogue.run_command(command, workspace))]
    return messages


def test_the_harness_sends_what_the_demonstrations_say(tmp_path, client, endpoint):
    server = endpoint([f"$ {command}" for command in COMMANDS])
    context, outcome, output = run(tmp_path, client, server)
    assert (outcome.end, outcome.model_calls) == (EndReason.SUBMITTED, len(COMMANDS)), output
    expected = expected_conversation(tmp_path)
    chat = ChatTokenizer(write_folder(tmp_path / "tokenizer"))
    for call, (path, headers, body) in enumerate(server.requests):
        assert path == "/x/abc/v1/chat/completions"
        assert {key.lower(): value for key, value in headers.items()}["authorization"] == "Bearer secret-token"
        assert body["model"] == "policy"
        assert not body.get("stream")
        seen = body["messages"]
        assert [canonical(message) for message in seen] == expected[: 2 + 2 * call]
        assert chat.render(seen) == chat.render(expected[: 2 + 2 * call])
    assert sorted(path.name for path in context.workspace.iterdir()) == ["a.txt", "queue.py"]


def test_an_answer_without_a_command_ends_the_run(tmp_path, client, endpoint):
    _, outcome, output = run(tmp_path, client, endpoint(["hello"]))
    assert (outcome.end, outcome.detail, outcome.model_calls) == (EndReason.EXITED, "RepeatedFormatError", 1), output


def test_a_conversation_that_no_longer_fits(tmp_path, client, endpoint):
    error = {
        "message": "This model's maximum context length is 10 tokens. However, you requested 20 tokens",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
    _, outcome, output = run(tmp_path, client, endpoint(["$ true", (400, {"error": error})]))
    assert (outcome.end, outcome.detail) == (EndReason.EXITED, "ContextWindowExceededError"), output


def test_a_lost_connection_is_not_the_end(tmp_path, client, endpoint):
    unavailable = (503, {"error": {"message": "starting", "type": "server_error"}})
    server = endpoint(["drop", unavailable, f"$ {dialogue.SUBMIT}"])
    _, outcome, output = run(tmp_path, client, server)
    assert outcome.end is EndReason.SUBMITTED, output
    assert len(server.requests) == 3


def test_a_refused_token_is_a_crash(tmp_path, client, endpoint):
    refused = (401, {"error": {"message": "unknown token", "type": "authentication_error"}})
    server = endpoint([refused])
    _, outcome, _ = run(tmp_path, client, server)
    assert outcome.end is EndReason.CRASHED
    assert len(server.requests) == 1


@pytest.mark.parametrize("script", [["stall"], ["$ true", "stall"]])
def test_a_killed_harness_is_a_crash(tmp_path, client, endpoint, script):
    server = endpoint(script)
    context, process = start(tmp_path, client, server)
    assert server.stalled.wait(300)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    outcome = MiniSweAgent().outcome(context, process.returncode)
    assert outcome.end is EndReason.CRASHED
    assert "-9" in outcome.detail
