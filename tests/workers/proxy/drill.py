"""One random interleaving: harnesses call, engines stream, drain, publish, fail and die, clients hang up and come back.

The truth is kept outside the proxy: what each client really read, what each engine was really asked to abort, and what
the seeded model says to a prompt when nothing happens. At the end all of it must agree with the records.
"""

import asyncio
import hashlib
import json
import random

import httpx2
from sqlalchemy import insert

import workers.proxy.server as proxy_server
from infra.engine import EngineClient
from infra.records import schema
from tests.workers.proxy.conftest import CHECKSUM, KEY, RUN, execution_name, execution_row_of, said, sse, text_of, user
from tests.workers.proxy.patches import empty_database, tokenizer_of
from tests.workers.proxy.station import Station, watch
from tests.workers.proxy.verdict import Verdict
from tests.workers.proxy.virtual import Wire, WireStreams
from workers.cell.rollout.paced.engine import PacedEngine
from workers.cell.rollout.paced.routes import paced_app
from workers.cell.rollout.paced.settings import PacedSettings
from workers.proxy.settings import ProxySettings
from workflows.messages.burst import Sampling
from workflows.messages.routing import CancelRequest, DoorChange, EngineEntry, RegisterExecution, RerouteRequest

SETTINGS = ProxySettings(
    hold_seconds=200,
    retry_seconds=60,
    first_token_seconds=4,
    next_token_seconds=2,
    abort_grace_seconds=2,
    abort_again_seconds=1.5,
    oldest_first_seconds=5,
    engine_backoff_seconds=0.1,
    backoff_limit_seconds=2,
    busy_limit_seconds=3,
)
FAULTS = (
    {"kind": "close"},
    {"kind": "close_done"},
    {"kind": "torn"},
    {"kind": "abort"},
    {"kind": "short"},
    {"kind": "overrun"},
    {"kind": "wrong_length"},
    {"kind": "misaligned"},
    {"kind": "bad_id"},
    {"kind": "label"},
    {"kind": "label", "label": "7"},
    {"kind": "clump"},
    {"kind": "hang"},
    {"kind": "stall"},
    {"kind": "garbage"},
    {"kind": "no_done"},
    {"kind": "slow", "factor": 30.0},
    {"kind": "refuse", "status": 503},
    {"kind": "refuse", "status": 429, "retry_after": "2"},
    {"kind": "refuse", "status": 404},
    {"kind": "late_abort"},
)


class Drill:
    def __init__(self, folder, seed, *, engines=3, harnesses=4, actions=12):
        self.folder, self.seed, self.random = folder, seed, random.Random(seed)
        self.chat = tokenizer_of(folder)
        self.stations = [Station(cell) for cell in range(engines)]
        self.harnesses, self.actions = harnesses, actions
        self.version, self.lease = 1, 0
        self.heard: dict[str, list[tuple[str, str]]] = {}  # execution -> (request hash, text) of answers read whole
        self.by_url: dict[str, Wire] = {}
        self.log: list[str] = []
        self.closed: set[int] = set()
        self.late_aborts = False

    # The world ------------------------------------------------------------------------------------------------

    async def run(self):
        self.database = empty_database()
        self.proxy = await proxy_server.build_proxy(
            run=RUN,
            database=self.database,
            model_folder=self.folder,
            context_tokens=1000,
            admin_key=KEY,
            settings=SETTINGS,
            connect=lambda url: EngineClient(
                url,
                vocabulary=self.chat.vocab_size,
                transport=self.by_url[url],
                streams=WireStreams(self.by_url[url]),
            ),
        )
        self.client = httpx2.AsyncClient(transport=Wire(self.proxy.public), base_url="http://proxy", timeout=None)
        try:
            for station in self.stations:
                await self.boot(station)
            for member in range(self.harnesses):
                self.register(member)
            await asyncio.gather(self.mischief(), *(self.harness(member) for member in range(self.harnesses)))
            await self.settle()
            verdict = Verdict(
                proxy=self.proxy,
                stations=self.stations,
                chat=self.chat,
                harnesses=self.harnesses,
                heard=self.heard,
                late_aborts=self.late_aborts,
            )
            verdict.check(self.database)
        finally:
            await self.client.aclose()
            await self.proxy.close()

    def note(self, text):
        self.log.append(f"{asyncio.get_running_loop().time():9.3f} {text}")

    def register(self, member):
        token = f"token-{member}"
        penalties = {"presence_penalty": 0.5} if member % 4 == 3 else {}
        registration = RegisterExecution(
            execution=execution_name(member),
            run=RUN,
            token_sha256=hashlib.sha256(token.encode()).hexdigest(),
            attempt=1,
            seed=5,
            sampling=Sampling(max_call_tokens=500, **penalties),
            call_limit=500,
        )
        with self.database.begin() as connection:
            connection.execute(insert(schema.executions).values(execution_row_of(registration, member)))
        self.proxy.executions.register(registration)

    async def boot(self, station):
        """A new process in a new boot, known to the proxy and open."""
        settings = PacedSettings(
            model=str(self.folder),
            version=str(self.version),
            tokens_per_second=self.random.choice((20, 50, 200)),
            prefill_tokens_per_second=1e5,
            slots=self.random.choice((1, 2, 4)),
            context=1008,
            mean_output_tokens=self.random.choice((15, 60, 10**9)),
            grammar_backend="xgrammar",
            disconnect_seconds=10**6,  # an abandoned request runs on unless it is aborted
            incremental=self.random.random() < 0.5,
            stream_interval=self.random.choice((1, 1, 3)),
        )
        engine = PacedEngine(settings.model_copy(update={"mean_output_tokens": 40}))
        watch(station, engine)
        station.epoch, station.engine, station.version = station.epoch + 1, engine, self.version
        station.wire = Wire(paced_app(engine), self.lag)
        url = f"http://{station.name}-{station.epoch}"
        self.by_url[url] = station.wire
        entry = EngineEntry(
            engine=station.name,
            cell=station.cell,
            boot_epoch=station.epoch,
            url=url,
            slots=settings.slots,
            kv_tokens=self.random.choice((600, 16384)),
        )
        await self.proxy.table.put(entry)
        await self.open(station)

    def lag(self, path):
        return self.random.choice((0.0, 0.0, 0.001, 0.05)) if path == "/abort_request" else self.random.random() * 0.01

    async def open(self, station):
        await self.door(station, open=True, version=station.version)
        self.note(f"{station.name} open at {station.version}")

    async def door(self, station, **change):
        change = DoorChange(engine=station.name, boot_epoch=station.epoch, checksum=CHECKSUM, **change)
        await self.proxy.table.door(change)

    # Harnesses ------------------------------------------------------------------------------------------------

    async def harness(self, member):
        """Two or three turns, each asked until it is answered; hangs up and sends twice as it likes."""
        history = []
        for turn in range(self.random.choice((1, 2, 3))):
            await asyncio.sleep(self.random.random() * 2)
            history.append(user(f"harness {member} turn {turn} " + "hello world " * self.random.randrange(12)))
            body = {"model": "policy", "messages": history, "max_tokens": self.random.choice((1, 8, 30, 90))}
            if self.random.random() < 0.6:
                body["stream"] = True
            if self.random.random() < 0.2:
                body["stop"] = [self.random.choice(("e", "th", "er "))]
            if member % 4 == 2 and self.random.random() < 0.5:
                body["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
            reply = await self.ask(member, body)
            if reply is None:
                return
            history.append(said(reply))

    async def ask(self, member, body):
        """The answer, whatever it takes; None when the execution was closed."""
        for _ in range(40):
            dice = self.random.random()
            if dice < 0.2:  # hang up in the middle, and ask again
                await self.send(member, body, patience=self.random.random() * 1.5)
            if dice < 0.3:  # the same request twice at once
                first, second = await asyncio.gather(self.send(member, body), self.send(member, body))
                if first is not None and second is not None and first != second:
                    raise AssertionError(f"two answers to one request: {first!r} {second!r}")
                answer = first if first is not None else second
            else:
                answer = await self.send(member, body)
            if answer is not None or member in self.closed:
                return answer
            await asyncio.sleep(1)
        raise AssertionError(f"harness {member} was never answered")

    async def send(self, member, body, patience=None):
        """Send once: the text of a whole answer, else None."""
        headers = {"authorization": f"Bearer token-{member}"}
        self.note(f"harness {member} asks, patience {patience}")
        try:
            async with asyncio.timeout(patience):
                async with self.client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
                    text = (await response.aread()).decode()
        except TimeoutError:
            return None
        if response.status_code != 200:
            if response.status_code not in (503, 410) or (response.status_code == 410 and member not in self.closed):
                raise AssertionError(f"harness {member}: {response.status_code} {text}")
            if response.status_code == 503 and "retry-after" not in response.headers:
                raise AssertionError("503 without retry-after")
            return None
        if body.get("stream"):
            events, done = sse(text)
            if not done:
                if "error" not in events[-1]:
                    raise AssertionError(f"a stream ended without a word: {events[-1]}")
                return None
            answer, finish = text_of(events), events[-1]["choices"][0]["finish_reason"]
        else:
            choice = json.loads(text)["choices"][0]
            answer, finish = choice["message"]["content"] or "", choice["finish_reason"]
        self.heard.setdefault(execution_name(member), []).append((json.dumps(body), answer, finish))
        self.note(f"harness {member} heard {finish}")
        return answer

    # Mischief -------------------------------------------------------------------------------------------------

    async def mischief(self):
        doing = []
        for _ in range(self.actions):
            await asyncio.sleep(self.random.expovariate(2.0))
            station = self.random.choice(self.stations)
            deed = self.random.choice(
                (self.drain, self.drain, self.lose, self.die, self.publish, self.publish_in_place, self.fault)
                + (self.fault, self.fault, self.retract)
                + ((self.close_execution,) if self.random.random() < 0.15 else ())
            )
            if deed in (self.fault, self.close_execution):
                await deed(station)
            elif not station.busy:
                station.busy = True
                doing.append(asyncio.ensure_future(self.alone(deed, station)))
        await asyncio.gather(*doing)

    async def alone(self, deed, station):
        try:
            await deed(station)
        finally:
            station.busy = False

    async def leave(self, station):
        """Reroute and cut until nothing is left there, as a transition does."""
        self.lease += 1
        lease = f"lease-{self.lease}"
        request = RerouteRequest(engine=station.name, boot_epoch=station.epoch, lease=lease)
        plan = await self.proxy.table.reroute(request, self.proxy.executions.in_flight())
        assert await self.proxy.table.reroute(request, {}) == plan
        if self.random.random() < 0.5:
            await asyncio.sleep(self.random.random())
        await self.cut(station, lease, kv=self.random.choice((0.0, 0.0, 0.7)))

    async def cut(self, station, lease, kv=0.0):
        request = CancelRequest(engine=station.name, boot_epoch=station.epoch, lease=lease, await_kv_seconds=kv)
        for _ in range(60):
            if not (await self.proxy.control.cancel(request)).still_running:
                break
            await asyncio.sleep(0.2)
        else:
            raise AssertionError(f"{station.name} never became quiet: {station.engine.running}")
        assert not station.engine.running
        assert not station.engine.waiting

    async def drain(self, station):
        self.note(f"{station.name} drains")
        await self.leave(station)
        await asyncio.sleep(self.random.random() * 3)
        station.version = self.version
        station.engine.version = str(self.version)
        await self.open(station)

    async def publish(self, station):
        self.note(f"{station.name} publishes")
        await self.door(station, open=False)
        await self.cut(station, f"publish-{self.random.random()}")
        self.version = max(self.version, station.version + 1)
        station.version = self.version
        station.engine.version = str(self.version)
        await self.open(station)

    async def publish_in_place(self, station):
        self.note(f"{station.name} publishes in place")
        coming = max(self.version, station.version + 1)
        await self.door(station, open=False, version=coming)
        station.engine.pause("in_place")
        await asyncio.sleep(self.random.random() * 3)
        self.version = max(self.version, coming)
        station.version = coming
        station.engine.version = str(coming)
        station.engine.resume()
        await self.open(station)

    async def retract(self, station):
        """A pause nobody announced: short, and nothing is lost by it."""
        station.engine.pause("retract")
        await asyncio.sleep(self.random.random())
        station.engine.resume()

    def kill(self, station):
        self.note(f"{station.name} dies")
        station.died |= {generation.rid for generation in (*station.engine.running, *station.engine.waiting)}
        station.wire.cut()

    async def die(self, station):
        self.kill(station)
        await asyncio.sleep(self.random.random() * 4)
        await self.boot(station)

    async def lose(self, station):
        self.kill(station)
        await self.proxy.table.lost(station.name, station.epoch)
        await asyncio.sleep(self.random.random() * 4)
        await self.boot(station)

    async def fault(self, station):
        from workers.cell.rollout.paced.faults import Fault

        fault = Fault(after_tokens=self.random.choice((0, 0, 1, 3, 12)), **self.random.choice(FAULTS))
        self.note(f"{station.name} fault {fault.kind} after {fault.after_tokens}")
        self.late_aborts |= fault.kind == "late_abort"
        station.engine.faults.arm(fault)

    async def close_execution(self, station):
        member = self.random.randrange(self.harnesses)
        self.note(f"execution {member} is closed")
        self.closed.add(member)
        await self.proxy.control.end_execution(execution_name(member))

    # The end --------------------------------------------------------------------------------------------------

    async def settle(self):
        """Everybody is answered; what was given up on must end by itself."""
        for station in self.stations:
            station.engine.faults.clear()
        for execution in self.proxy.executions.all():
            await asyncio.gather(*(call.task for call in execution.running.values()), return_exceptions=True)
        await asyncio.sleep(60)
