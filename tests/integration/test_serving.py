"""Operating the service: health checks while its dependencies fail and recover, shutdown, kills, TLS and tokens."""

import asyncio
import concurrent.futures
import contextlib
import json
import random
import signal
import time
import urllib.request
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import grpc
import httpx2
import pytest
import trustme
from click.testing import CliRunner
from grpc_health.v1 import health_pb2, health_pb2_grpc

from court.backends.chat.client import ChatCompletions, http_client
from court.backends.http import Load
from court.errors import BadRequest, CourtError, Unavailable
from court.events import Procedure, VerdictGiven
from court.record import TrialState
from court.roles import RoleModel, RoleModels
from eval.standin.faults import Faults
from eval.standin.server import FakeModelServer, serving
from eval.standin.settings import Settings as StandInSettings
from memecourt.client import AsyncClient, Client, JudgeError, judge_request
from memecourt.retries import Retries
from memecourt.v1 import court_pb2 as wire
from serving.app import serve
from serving.cli.main import cli
from serving.rpc import health as wellness
from serving.rpc.health import COURT, DOCKET, LIVENESS, NOT_SERVING, OVERALL, PRECEDENTS, SERVING, Health, ModelProbe
from serving.rpc.server import Methods, make_server
from serving.settings import Settings
from serving.wiring import readiness_checks
from tests.support import hostile
from tests.support.playing import until
from tests.support.server import HARMFUL, HARMLESS, ModelServer, drawn, memecourt, records
from tests.support.sizes import FULL

ONCE = Retries(attempts=1)
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


@contextlib.asynccontextmanager
async def running(work):
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# The health service


@contextlib.asynccontextmanager
async def served_health():
    server, health = await make_server(Methods())
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield health, health_pb2_grpc.HealthStub(channel), server
    finally:
        await server.stop(0)


async def test_only_liveness_is_serving_at_first():
    async with served_health() as (health, stub, _):
        listed = await stub.List(health_pb2.HealthListRequest(), timeout=60)
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await stub.Check(health_pb2.HealthCheckRequest(service="memecourt.v1.Jury"), timeout=60)
        health.say(COURT, serving=True)
        after = await stub.Check(health_pb2.HealthCheckRequest(service=COURT), timeout=60)
        before = {name: status.status for name, status in listed.statuses.items()}
    assert before.pop(LIVENESS) == SERVING
    assert before == dict.fromkeys((OVERALL, COURT, DOCKET, PRECEDENTS), NOT_SERVING)
    assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
    assert after.status == SERVING


async def test_health_watch_reports_each_change_and_ends_with_the_server():
    async with served_health() as (health, stub, server):
        watched = {COURT: [], LIVENESS: [], "none": []}

        async def watch(service):
            async for response in stub.Watch(health_pb2.HealthCheckRequest(service=service), timeout=60):
                watched[service].append(response.status)

        async with asyncio.TaskGroup() as group:
            for service in watched:
                group.create_task(watch(service))
            await until(lambda: all(watched.values()))
            health.say(COURT, serving=True)
            await until(lambda: watched[COURT][-1] == SERVING)
            health.end()
            health.say(COURT, serving=True)
        # All watches have ended, so a stopping server need not wait for them.
        await asyncio.wait_for(server.stop(300), 120)
        assert watched == {COURT: [NOT_SERVING, SERVING, NOT_SERVING], LIVENESS: [SERVING], "none": [UNKNOWN]}


# Probes of the models and the docket


class FakeDocket:
    def __init__(self):
        self.fault = None

    @property
    def heartbeats(self):
        return self

    async def beat(self, owner):
        if self.fault:
            raise self.fault


class ModelHost:
    """A fake model server in this process, on a port that stays the same when it is restarted."""

    def __init__(self):
        self.model = FakeModelServer(StandInSettings())
        self.port = 0
        self._stack = contextlib.AsyncExitStack()

    async def start(self):
        self.port = await self._stack.enter_async_context(serving(self.model, self.port))

    async def kill(self):
        await self._stack.aclose()

    async def spoil(self, *faults):
        self.model.faults = Faults(faults)


@contextlib.asynccontextmanager
async def served_models(count):
    """Yields hosts that each serve the model, and the client that uses all of them."""
    hosts, http = [ModelHost() for _ in range(count)], http_client()
    try:
        for host in hosts:
            await host.start()
        urls = [f"http://127.0.0.1:{host.port}/v1" for host in hosts]
        models = [ChatCompletions(base_url=url, model="stand-in", http=http, load=Load(4)) for url in urls]
        yield hosts, ChatCompletions.joined(models)
    finally:
        await http.aclose()
        for host in hosts:
            await host.kill()


@contextlib.asynccontextmanager
async def watched_court(procedure=Procedure.FULL, hosts=1):
    """Yields the health of a court whose models and docket can be made to fail, once all is serving."""
    docket, health = FakeDocket(), Health()
    async with served_models(hosts) as (served, model):
        role_model = RoleModel(model)
        court = SimpleNamespace(role_models=RoleModels(role_model, role_model, role_model, role_model), finder=None)
        executor = SimpleNamespace(court=court, docket=docket)
        checks = readiness_checks(executor, Settings(procedure=procedure))
        async with running(wellness.run_health_checks(health, checks)) as checking:
            court = SimpleNamespace(health=health, hosts=served, docket=docket)
            await wait_for_statuses(court, ALL_WELL)
            yield court
            assert not checking.done()


def statuses_of(court):
    return {name: court.health.status(name) == SERVING for name in (*court.health.services, LIVENESS)}


async def wait_for_statuses(court, wanted):
    """Waits until the services have exactly these statuses; on a busy machine that may take more than one probe."""
    try:
        await until(lambda: statuses_of(court) == wanted)
    except TimeoutError:
        raise AssertionError(f"the statuses are {statuses_of(court)}") from None


ALL_WELL = {OVERALL: True, COURT: True, DOCKET: True, PRECEDENTS: True, LIVENESS: True}
NO_MODELS = ALL_WELL | {OVERALL: False, COURT: False}
NO_DOCKET = NO_MODELS | {DOCKET: False}

FAULTS = {
    "killed": (ModelHost.kill, ModelHost.start),
    "hung": (lambda host: host.spoil("hang"), ModelHost.spoil),
    "500": (lambda host: host.spoil("500"), ModelHost.spoil),
    "503": (lambda host: host.spoil("503"), ModelHost.spoil),
    "cut": (lambda host: host.spoil("cut"), ModelHost.spoil),
    "no JSON": (lambda host: host.spoil("garbage"), ModelHost.spoil),
    "wrong JSON": (lambda host: host.spoil("wrong_shape"), ModelHost.spoil),
}


def test_probe_intervals_meet_the_promised_detection_times():
    """GR-4: NOT_SERVING within 5 s, back within 10 s, computed from the time limits and the interval of probes."""
    # Worst case: it fails right after answering a probe, and the next probe takes its full time limit.
    assert wellness.WITHIN_S + wellness.EVERY_S + wellness.WITHIN_S <= 5
    # Worst case: it recovers right after a probe was sent that it won't answer.
    assert wellness.WITHIN_S + wellness.EVERY_S + wellness.WITHIN_S <= 10
    assert wellness.DOCKET_WITHIN_S + wellness.EVERY_S <= 5


@pytest.fixture
def frequent_probes(monkeypatch):
    """Probes more often than a server does, so that the tests are quick."""
    monkeypatch.setattr(wellness, "EVERY_S", 0.05)
    monkeypatch.setattr(wellness, "WITHIN_S", 0.4)


@pytest.mark.parametrize("fault", FAULTS)
async def test_health_follows_failure_and_recovery_of_the_model_server(frequent_probes, fault):
    fail, recover = FAULTS[fault]
    async with watched_court() as court:
        await fail(court.hosts[0])
        await wait_for_statuses(court, NO_MODELS)
        await recover(court.hosts[0])
        await wait_for_statuses(court, ALL_WELL)


async def test_one_working_model_server_of_several_is_enough(frequent_probes):
    async with watched_court(hosts=2) as court:
        first, second = court.hosts
        await first.spoil("hang")
        calls = second.model.stats.calls
        await until(lambda: second.model.stats.calls > calls + 2)
        await wait_for_statuses(court, ALL_WELL)
        await second.kill()
        await wait_for_statuses(court, NO_MODELS)
        await first.spoil()
        await wait_for_statuses(court, ALL_WELL)


async def test_court_that_asks_no_model_serves_without_one(frequent_probes):
    async with watched_court(procedure=Procedure.SUMMARY) as court:
        await court.hosts[0].kill()
        await asyncio.sleep(0.5)
        assert (statuses_of(court), court.hosts[0].model.stats.calls) == (ALL_WELL, 0)


async def test_health_follows_failure_and_recovery_of_the_docket(frequent_probes):
    async with watched_court() as court:
        for fault in (Unavailable("gone", reason="DOCKET_UNAVAILABLE"), None, ZeroDivisionError("ours"), None):
            court.docket.fault = fault
            await wait_for_statuses(court, ALL_WELL if fault is None else NO_DOCKET)


async def test_model_that_answers_other_calls_is_up_even_if_it_misses_a_probe(frequent_probes, monkeypatch):
    """A busy server may answer a probe too late; if it answers other calls, it is not down."""
    async with served_models(1) as ((host,), model):
        (server,) = model._servers
        probe = ModelProbe(model)
        await host.spoil("hang")

        async def answer_another():
            await asyncio.sleep(0.1)
            server.answered_at = time.monotonic()

        async with running(answer_another()):
            await probe()
        await asyncio.sleep(2 * wellness.EVERY_S)
        with pytest.raises(Unavailable):
            await probe()
        calls = host.model.stats.calls
        # A server that has just answered another call is not probed at all.
        monkeypatch.setattr(wellness, "EVERY_S", 60)
        server.answered_at = time.monotonic()
        await probe()
        calls_after = host.model.stats.calls
    assert calls == calls_after >= 2


def test_dead_model_is_down_even_if_another_answers_at_its_url(frequent_probes, monkeypatch):
    """A gateway may list several models of which one has a dead engine, while another one answers."""
    monkeypatch.setattr(wellness, "EVERY_S", 60)

    async def answer(request):
        if request.url.path.endswith("/models"):
            return httpx2.Response(200, json={"data": [{"id": "dead"}, {"id": "alive"}]})
        if json.loads(request.content)["model"] == "dead":
            await alive.reply(wellness._HELLO, within_s=20)
            return httpx2.Response(500)
        choice = {"message": {"content": "Hello"}, "finish_reason": "length"}
        return httpx2.Response(200, json={"model": "alive", "choices": [choice]})

    async def work():
        nonlocal alive
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as http:
            alive, dead = [
                ChatCompletions(base_url="http://gateway/v1", model=name, http=http, load=load)
                for name in ("alive", "dead")
            ]
            assert "dead" in (await dead.listed(within_s=20)).names
            for _ in range(2):  # by the second probe the other model has answered, too
                with pytest.raises(CourtError):
                    await ModelProbe(dead)()
            await ModelProbe(alive)()

    alive, load = None, Load(64)
    asyncio.run(work())


# The server as a process


class ScriptedModelServer(ModelServer):
    """A fake model server whose next calls can be given faults."""

    def script(self, faults):
        body = json.dumps(faults).encode()
        urllib.request.urlopen(f"http://127.0.0.1:{self.port}/script", data=body, timeout=60).close()


def code_of(address, service, credentials=None):
    channel = grpc.secure_channel(address, credentials) if credentials else grpc.insecure_channel(address)
    with channel:
        return (
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service), timeout=60).status
        )


def wait_for_health(address, service, status):
    """Waits until a service has a status, by watching it as a load balancer does."""
    with grpc.insecure_channel(address) as channel:
        watching = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(service=service), timeout=180
        )
        for response in watching:
            if response.status == status:
                watching.cancel()
                return
    raise AssertionError("the server ended")


def verdict_or_error(court, request):
    """Returns the verdict, or the error that came instead."""
    try:
        return court.ask(request, timeout=300)
    except JudgeError as error:
        return error


def ask(address, request_id):
    """Sends a request over a new connection; returns the verdict, or the error that came instead."""
    seed = int(request_id.partition("-")[2])
    request = judge_request(
        drawn(*HARMFUL, seed=seed), text=HARMFUL[1], request_id=request_id, procedure=wire.PROCEDURE_FULL
    )
    with Client(address, retries=ONCE) as court:
        return verdict_or_error(court, request)


def test_server_waits_for_its_model_server_and_reports_its_loss(start, home):
    models = ModelServer("--call-s", "0.01")
    models.kill()
    try:
        server = start(None, "--llm-url", models.url, "--model", "stand-in", "--procedure", "full")
        server.wait_for(lambda line: "Waiting for the model server" in line)
        assert code_of(server.address, LIVENESS) == SERVING
        assert code_of(server.address, COURT) == NOT_SERVING
        early = ask(server.address, "early-1")
        assert early.reason == "NOT_IN_SESSION" and early.retry_after
        # The health command reports the same.
        for service, wanted in ((COURT, (1, "NOT_SERVING\n")), (LIVENESS, (0, "SERVING\n"))):
            checked = memecourt("health", server.address, "--service", service, "--timeout", "60", home=home)
            assert (checked.returncode, checked.stdout) == wanted, checked.stderr

        models.start()
        server.ready()
        assert code_of(server.address, COURT) == SERVING
        assert ask(server.address, "first-2").label == wire.LABEL_HARMFUL

        models.kill()
        wait_for_health(server.address, COURT, NOT_SERVING)
        assert code_of(server.address, LIVENESS) == SERVING
        wait_for_health(server.address, DOCKET, SERVING)  # on a busy machine one probe of it may be late
        assert ask(server.address, "second-3").code is grpc.StatusCode.UNAVAILABLE

        models.start()
        wait_for_health(server.address, COURT, SERVING)
        assert ask(server.address, "third-4").label == wire.LABEL_HARMFUL
        assert server.end() == 0
    finally:
        if models.process.poll() is None:
            models.kill()


N = 100 if FULL else 12


@pytest.mark.promise("GR-5", "100 requests, 50 trials at once: 0 lost, 0 twice")
def test_sigterm_under_load_loses_nothing(start, monkeypatch):
    """GR-5: each accepted request gets its verdict, or a typed refusal and a record from which it is resumed."""
    requests = {
        f"r-{i}": judge_request(
            drawn(*HARMFUL, seed=i), text=HARMFUL[1], request_id=f"r-{i}", procedure=wire.PROCEDURE_FULL
        )
        for i in range(N)
    }
    too_late = judge_request(drawn(*HARMFUL, seed=N), text=HARMFUL[1], procedure=wire.PROCEDURE_FULL)
    models = ScriptedModelServer("--call-s", "0.05")
    try:
        monkeypatch.setenv("MEMECOURT_GRACE", "1")
        monkeypatch.setenv("MEMECOURT_TRIAL__FIND_S", "300")  # slowness of a busy machine is not tested
        options = ("--llm-url", models.url, "--model", "stand-in", "--concurrent-trials", str(N // 2))
        server = start(None, *options).ready()
        with Client(server.address, retries=ONCE) as court, concurrent.futures.ThreadPoolExecutor(N + 1) as pool:
            pending = {name: pool.submit(verdict_or_error, court, request) for name, request in requests.items()}
            server.wait_for(lambda line: "event=VerdictGiven" in line)
            # From now on no trial advances: some are decided, the running ones hang, the rest are queued.
            models.script(["hang"] * 10_000)
            server.process.send_signal(signal.SIGTERM)
            server.wait_for(lambda line: "stopping" in line)
            late = verdict_or_error(court, too_late)
            answers = {name: outcome.result() for name, outcome in pending.items()}
        assert server.process.wait(timeout=150) == 0
        server.end()

        verdicts = {name: outcome for name, outcome in answers.items() if not isinstance(outcome, JudgeError)}
        refused = {name: outcome for name, outcome in answers.items() if isinstance(outcome, JudgeError)}
        assert verdicts and late.code is grpc.StatusCode.UNAVAILABLE
        for error in refused.values():
            assert error.code is grpc.StatusCode.UNAVAILABLE and error.retry_after is not None, error
            assert error.reason in ("SERVER_STOPPED", "CLOSING")
        stored = records(server.docket)
        started = {record.opened.request_id: record for record in stored.values()}
        cut_off = {name: record for name, record in started.items() if record.state is not TrialState.DECIDED}
        assert len(started) == len(stored) and started.keys() == verdicts.keys() | cut_off.keys()
        assert all(started[name].trial_id == verdict.verdict_id for name, verdict in verdicts.items())
        assert cut_off and all(record.state is TrialState.FAILED for record in cut_off.values())
        for name, record in cut_off.items():
            assert refused[name].reason == "SERVER_STOPPED"
            assert refused[name].metadata["trial_id"] == record.trial_id

        # Retried, as the errors advise: started trials are resumed, and none is tried twice.
        models.kill()
        models.start()
        restarted = start(server.docket, *options).ready()
        with Client(restarted.address, retries=ONCE) as court, concurrent.futures.ThreadPoolExecutor(N) as pool:
            retried = dict(
                zip(
                    requests, pool.map(lambda request: verdict_or_error(court, request), requests.values()), strict=True
                )
            )
        restarted.end()
        assert all(outcome.label == wire.LABEL_HARMFUL for outcome in retried.values())
        stored = records(server.docket)
        assert len(stored) == N and {record.state for record in stored.values()} == {TrialState.DECIDED}
        for name, record in started.items():
            assert retried[name].verdict_id == record.trial_id
            assert stored[record.trial_id].events[: len(record.events)] == record.events
    finally:
        if models.process.poll() is None:
            models.kill()


KILLS = 10 if FULL else 1


@pytest.mark.promise("RE-1", "100 requests over 10 kills: one verdict each")
def test_sigkill_under_load_loses_no_accepted_request(start):
    """Kills leave trials in all states; the next server resumes them, and every request gets exactly one verdict."""
    choose = random.Random(19)
    per_kill = max(N // KILLS, 10)
    requests, announced, answered = {}, set(), {}
    models = ModelServer("--call-s", "0.03")
    try:
        # Half of them run at a time, so that when a few are decided others have only begun.
        options = ("--llm-url", models.url, "--model", "stand-in", "--concurrent-trials", str(per_kill // 2))
        server = start(None, *options).ready()
        docket = server.docket
        for kill in range(KILLS):
            new = {f"r-{kill * per_kill + number}" for number in range(per_kill)}
            requests |= {
                name: judge_request(
                    drawn(*HARMFUL, seed=int(name[2:])), text=HARMFUL[1], request_id=name, procedure=wire.PROCEDURE_FULL
                )
                for name in new
            }
            with (
                Client(server.address, retries=ONCE) as court,
                concurrent.futures.ThreadPoolExecutor(len(requests)) as pool,
            ):
                # Earlier requests are sent again: they join a resumed trial, or wait until the dead server is detected.
                pending = {name: pool.submit(verdict_or_error, court, request) for name, request in requests.items()}
                decided = choose.randrange(1, per_kill // 2)
                verdicts_logged = Counter()

                def enough_verdicts(line, verdicts_logged=verdicts_logged, decided=decided):
                    verdicts_logged[line] = "event=VerdictGiven" in line
                    return verdicts_logged.total() >= decided

                server.wait_for(enough_verdicts)
                assert server.end(kill=True) == -signal.SIGKILL
                for name, future in pending.items():
                    if not isinstance(future.result(), JudgeError):
                        answered.setdefault(name, set()).add(future.result().verdict_id)
            announced |= server.announced()
            stored = records(docket)
            assert announced <= {
                (trial_id, event.seq) for trial_id, record in stored.items() for event in record.events
            }
            cut_off = {trial_id for trial_id, record in stored.items() if record.state is TrialState.OPEN}
            assert cut_off, "the server was killed after all its trials had ended"
            server = start(docket, "--resume", *options).ready()
        # Trials cut off by the last kill are resumed without a request.
        for _ in cut_off:
            server.wait_for(lambda line: "resumed state=DECIDED" in line)
        with (
            Client(server.address, retries=ONCE) as court,
            concurrent.futures.ThreadPoolExecutor(len(requests)) as pool,
        ):
            final = dict(
                zip(
                    requests, pool.map(lambda request: verdict_or_error(court, request), requests.values()), strict=True
                )
            )
        assert server.end() == 0
    finally:
        if models.process.poll() is None:
            models.kill()
    after = records(docket)
    assert {record.state for record in after.values()} == {TrialState.DECIDED}
    assert sorted(record.opened.request_id for record in after.values()) == sorted(requests)
    assert all(len(record.all(VerdictGiven)) == 1 for record in after.values())
    for name, verdict in final.items():
        assert answered.get(name, {verdict.verdict_id}) == {verdict.verdict_id}
        assert after[verdict.verdict_id].opened.request_id == name
    for trial_id, record in stored.items():  # of the last kill: resumed trials keep their events and so repeat no call
        assert after[trial_id].events[: len(record.events)] == record.events


BOMBS = 1200 if FULL else 24


@pytest.mark.promise("IM-6", "1,200 hostile pictures beside normal requests: all refused, 0 others fail")
def test_hostile_pictures_are_refused_without_failing_other_requests(server):
    """IM-6, counted."""
    seconds, before = BOMBS / hostile.RATE, len(records(server.docket))

    async def throw_and_judge():
        answered, health = [], set()
        async with AsyncClient(server.address, retries=ONCE) as court:
            throwing = asyncio.ensure_future(hostile.throw(server.address, hostile.RATE, seconds))
            while not throwing.done():
                request = judge_request(drawn(*HARMLESS, seed=len(answered) + 50), text="some words")
                answered.append((await court.ask(request, timeout=100)).verdict_id)
                health |= {await asyncio.to_thread(code_of, server.address, name) for name in (COURT, LIVENESS)}
            return await throwing, answered, health

    codes, answered, health = asyncio.run(throw_and_judge())
    assert codes == {"INVALID_ARGUMENT": BOMBS}
    assert answered and health == {SERVING}
    # Some of the seeds draw the same meme, which has one trial.
    assert len(records(server.docket)) == before + len(set(answered)), "a refused picture left a trial"


def test_tls_and_tokens_guard_the_server(start, tmp_path):
    def tokens(*arguments):
        result = CliRunner().invoke(cli, ["tokens", *arguments, "--file", str(tmp_path / "tokens.toml")])
        assert result.exit_code == 0, result.output
        return result.stdout.strip()

    token = tokens("add", "pipeline", "--scope", "judge", "--namespace", "forum")
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "certificate.pem")
    server = start(
        None,
        *("--tls-certificate", str(tmp_path / "certificate.pem"), "--tls-key", str(tmp_path / "key.pem")),
        *("--tokens", str(tmp_path / "tokens.toml"), "--no-reflection"),
    ).ready()
    address = server.address.replace("127.0.0.1", "localhost")
    credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
    assert code_of(address, COURT, credentials) == SERVING

    def status_of_judging(token, namespace="forum"):
        """Returns the status code of a request with a token."""
        with grpc.secure_channel(address, credentials) as channel:
            judge = channel.stream_unary(
                "/memecourt.v1.Court/Judge", wire.JudgeRequest.SerializeToString, wire.JudgeResponse.FromString
            )
            request = judge_request(drawn(*HARMLESS), text=HARMLESS[1])
            request.content.namespace = namespace
            try:
                judge(iter([request]), timeout=120, metadata=[("authorization", f"Bearer {token}")])
            except grpc.RpcError as error:
                return error.code()
            return grpc.StatusCode.OK

    assert status_of_judging(token) is grpc.StatusCode.OK
    assert status_of_judging(token, "another") is grpc.StatusCode.PERMISSION_DENIED
    assert status_of_judging("made up") is grpc.StatusCode.UNAUTHENTICATED
    assert "pipeline" in tokens("list") and token not in tokens("list")
    tokens("remove", "pipeline")
    server.wait_for(lambda line: "The file of tokens has changed and is in use" in line)
    assert status_of_judging(token) is grpc.StatusCode.UNAUTHENTICATED
    assert not any(token in line for line in server.log)
    assert server.end() == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tokens": Path("none.toml")}, "The file of tokens can't be read"),
        ({"tls_certificate": Path("none.pem")}, "TLS needs both"),
        ({"tls_certificate": Path("none.pem"), "tls_key": Path("none.key")}, "certificate can't be read"),
        ({"metrics": "nowhere"}, "etrics"),
    ],
)
def test_unusable_security_or_metrics_settings_prevent_the_start(wrong, message):
    addresses = []
    with pytest.raises(BadRequest, match=message):
        asyncio.run(serve(Settings(**wrong), "127.0.0.1:0", bound=addresses.append))
    assert not addresses, "the server listened before it had checked its settings"
