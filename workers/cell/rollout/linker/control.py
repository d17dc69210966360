"""The linker's control port: HTTP on loopback, one bearer token, a thread inside the engine's scheduler process.

POST /retain       Retain -> Retained            arm a hand-off
POST /manifest     LeaseRequest -> KvManifest    after writes have stopped
POST /pull         Pull -> Pulled                at the destination
POST /acknowledge  LeaseRequest -> LeaseEnded    the destination holds a verified copy
POST /release      LeaseRequest -> LeaseEnded    end a lease (409 StillHeld before acknowledgement, unless abandoned)
GET  /stats        LinkerStats

Errors are ``{"kind", "error"}`` with the class of the exception tree as kind.
"""

import hmac
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pydantic import ValidationError

from workers.cell.rollout.linker.store import KvStore
from workflows.messages.base import Message
from workflows.messages.errors import GyreError, InvalidInput
from workflows.messages.kv import LeaseRequest, Pull, Retain

MAX_BODY_BYTES = 64 << 20
SOCKET_SECONDS = 30.0


class ControlServer(ThreadingHTTPServer):
    """Serves one store until `close`. Its idle loop also ends leases whose time is over."""

    daemon_threads = True

    def __init__(self, store: KvStore, port: int, token: str) -> None:
        if not token:
            raise InvalidInput("must not be empty", field="linker.token")
        super().__init__(("127.0.0.1", port), _Handler)
        self.store, self.token = store, token
        self._thread = threading.Thread(target=self.serve_forever, name="kv-linker-control", daemon=True)

    @property
    def port(self) -> int:
        return self.server_address[1]

    def start(self) -> None:
        self._thread.start()

    def service_actions(self) -> None:
        self.store.sweep()

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: ControlServer  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"
    timeout = SOCKET_SECONDS

    def do_GET(self) -> None:
        self._answer({"/stats": lambda _: self.server.store.stats()})

    def do_POST(self) -> None:
        store = self.server.store
        self._answer(
            {
                "/retain": lambda body: store.retain(Retain.model_validate_json(body)),
                "/manifest": lambda body: store.manifest(LeaseRequest.model_validate_json(body).lease),
                "/pull": lambda body: store.pull(Pull.model_validate_json(body)),
                "/acknowledge": lambda body: store.acknowledge(LeaseRequest.model_validate_json(body).lease),
                "/release": lambda body: _release(store, LeaseRequest.model_validate_json(body)),
            }
        )

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged: the engine's log is its own."""

    def _answer(self, routes: dict[str, Any]) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        if length > MAX_BODY_BYTES:
            self.close_connection = True
            self._send(413, {"kind": "InvalidInput", "error": "the body is too large"})
            return
        body = self.rfile.read(length)
        if not hmac.compare_digest(self.headers.get("Authorization") or "", f"Bearer {self.server.token}"):
            self._send(401, {"kind": "InvalidInput", "error": "wrong or missing token"})
        elif self.path not in routes:
            self._send(404, {"kind": "InvalidInput", "error": f"no route {self.path}"})
        else:
            self._run(routes[self.path], body)

    def _run(self, route: Any, body: bytes) -> None:
        try:
            answer: Message = route(body)
        except ValidationError as error:
            self._send(400, {"kind": "InvalidInput", "error": str(error)})
        except InvalidInput as error:
            self._send(400, {"kind": type(error).__name__, "error": str(error)})
        except GyreError as error:
            self._send(409, {"kind": type(error).__name__, "error": str(error)})
        except Exception as error:
            self._send(500, {"kind": "EngineUnavailable", "error": f"{type(error).__name__}: {error}"})
            raise
        else:
            self._send(200, answer.model_dump_json().encode())

    def _send(self, status: int, answer: dict[str, str] | bytes) -> None:
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _release(store: KvStore, request: LeaseRequest) -> Message:
    return store.release(request.lease, abandon=request.abandon)
