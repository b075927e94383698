"""Authentication: TLS, client certificates and tokens for every method of the contract, over real channels."""

import asyncio
import datetime
import os
import ssl
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import grpc
import httpx2
import pytest
import trustme
from click.testing import CliRunner
from google.protobuf import descriptor_pool
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from court.errors import BadRequest
from memecourt.client import judge_request
from memecourt.v1 import court_pb2 as wire
from serving.access import tokens as token_file
from serving.access.callers import ANYBODY, Caller, NotAllowed, Scope, check_namespace, current, set_current
from serving.access.reload import follow_files
from serving.access.tls import Certificates
from serving.access.tokens import Tokens
from serving.cli.main import cli
from serving.http.listen import Listener, open_listener
from serving.rpc.flow_control import MESSAGE_BYTES
from serving.rpc.server import SCOPES, Methods, make_server
from serving.settings import Settings
from tests.support.access import services
from tests.support.playing import until
from tests.support.real_court import IMAGE, real_court

METHODS = {
    f"/{service.full_name}/{method.name}": method
    for service in wire.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
AUTHENTICATED = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INVALID_ARGUMENT}
"""Status codes of services that are not open yet for empty requests: a caller that gets one passed authentication."""


class Echo:
    """Answers Judge with the caller's name after a delay; also has a method without a scope."""

    def handler(self):
        async def judge(_, __):
            before = current()
            await asyncio.sleep(0.01)
            assert current() is before
            return current().name.encode()

        handlers = {name: grpc.unary_unary_rpc_method_handler(judge) for name in ("Judge", "Pardon")}
        return grpc.method_handlers_generic_handler("memecourt.v1.Court", handlers)


@asynccontextmanager
async def a_server(*methods, certificates=None, reflect=True, **options):
    server, _ = await make_server(Methods(*(methods or services()), **options), reflect=reflect)
    if certificates:
        port = server.add_secure_port("localhost:0", certificates.credentials())
    else:
        port = server.add_insecure_port("localhost:0")
    await server.start()
    try:
        yield f"localhost:{port}"
    finally:
        await server.stop(0)


def bearer(token):
    return (("authorization", f"Bearer {token}"),)


async def call(channel, method, metadata=(), message=b"", **options):
    """Calls a method of any form and returns the error it ends with, or None.

    If a call is refused while its request is still being written, grpc.aio may report only that
    (github.com/grpc/grpc/issues/36066); such a call is repeated.
    """
    for _ in range(10):
        error = await call_once(channel, method, metadata, message, **options)
        if error is None or error.details() != "Internal error from Core":
            break
    return error


async def call_once(channel, method, metadata, message, **options):
    kind = METHODS.get(method)
    forms = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, False): channel.stream_unary,
        (True, True): channel.stream_stream,
    }
    form = forms[kind.client_streaming, kind.server_streaming] if kind else channel.unary_unary
    request = iter([message]) if kind and kind.client_streaming else message
    try:
        calling = form(method)(request, metadata=tuple(metadata), timeout=60, **options)
        if kind and kind.server_streaming:
            return [answer async for answer in calling] and None
        await calling
    except grpc.aio.AioRpcError as error:
        return error
    return None


def reason(error):
    status = rpc_status.from_call(error)
    (info,) = [detail for detail in status.details if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR)]
    unpacked = error_details_pb2.ErrorInfo()
    info.Unpack(unpacked)
    assert unpacked.domain == "memecourt.v1"
    return unpacked.reason


@pytest.fixture
def file(tmp_path):
    return tmp_path / "tokens.toml"


# Tokens


def test_exactly_the_methods_of_the_contract_have_a_scope():
    assert SCOPES.keys() == METHODS.keys()
    assert {method for method, scope in SCOPES.items() if scope is Scope.ADMIN} == {
        f"/memecourt.v1.Precedents/{name}" for name in ("AddPrecedent", "RemovePrecedent", "RelabelPrecedent")
    }
    docket = {method: scope for method, scope in SCOPES.items() if method.startswith("/memecourt.v1.Docket/")}
    assert docket.pop("/memecourt.v1.Docket/WatchReviews") is Scope.JUDGE  # for pipelines
    assert docket.pop("/memecourt.v1.Docket/ListChanges") is Scope.JUDGE
    assert docket.pop("/memecourt.v1.Docket/GetNotice") is Scope.JUDGE  # holds less than a verdict
    assert docket.pop("/memecourt.v1.Docket/OpenAppeal") is Scope.JUDGE  # for anybody who got the verdict
    assert set(docket.values()) == {Scope.REVIEW}


async def test_each_token_opens_only_the_methods_of_its_scope(file):
    tokens = {scope: token_file.add(file, str(scope), [scope], None) for scope in Scope}
    tokens["all"] = token_file.add(file, "all", list(Scope), None)

    outcomes = {}
    async with a_server(tokens=Tokens.of(file)) as address, grpc.aio.insecure_channel(address) as channel:
        for method in METHODS:
            for name, token in tokens.items():
                outcomes[method, name] = await call(channel, method, bearer(token))
    assert len(outcomes) == (len(Scope) + 1) * len(METHODS) >= 65
    for (method, name), error in outcomes.items():
        if name in ("all", SCOPES[method]):
            assert error.code() in AUTHENTICATED and reason(error), method
        else:
            assert (error.code(), reason(error)) == (grpc.StatusCode.PERMISSION_DENIED, "SCOPE_MISSING"), method


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ((), "TOKEN_MISSING"),
        ((("authorization", ""),), "TOKEN_MALFORMED"),
        ((("authorization", "{token}"),), "TOKEN_MALFORMED"),
        ((("authorization", "Basic {token}"),), "TOKEN_MALFORMED"),
        ((("authorization", "Bearer {token}"), ("authorization", "Bearer {token}")), "TOKEN_MALFORMED"),
        ((("authorization", "Bearer {token}x"),), "TOKEN_UNKNOWN"),
        ((("authorization", "Bearer {hash}"),), "TOKEN_UNKNOWN"),
        ((("authorization", "Bearer " + "x" * 6000),), "TOKEN_UNKNOWN"),
        ((("authorization-bin", b"Bearer {token}"),), "TOKEN_MISSING"),
    ],
)
async def test_callers_without_a_valid_token_are_rejected_by_every_method(file, metadata, why):
    token = token_file.add(file, "pipeline", list(Scope), None)
    placeholders = {"token": token, "hash": token_file.hash_of(token)}
    sent = [(key, value if isinstance(value, bytes) else value.format(**placeholders)) for key, value in metadata]
    async with a_server(tokens=Tokens.of(file)) as address, grpc.aio.insecure_channel(address) as channel:
        errors = [await call(channel, method, sent) for method in METHODS]
    for error in errors:
        assert (error.code(), reason(error)) == (grpc.StatusCode.UNAUTHENTICATED, why)
        assert token not in error.details()


def test_a_method_without_a_scope_is_closed_to_everybody(file):
    token = token_file.add(file, "pipeline", list(Scope), None)

    async def work(tokens, metadata):
        async with a_server(Echo(), tokens=tokens) as address, grpc.aio.insecure_channel(address) as channel:
            return await call(channel, "/memecourt.v1.Court/Pardon", metadata)

    for error in (asyncio.run(work(Tokens.of(file), bearer(token))), asyncio.run(work(None, ()))):
        assert (error.code(), reason(error)) == (grpc.StatusCode.PERMISSION_DENIED, "METHOD_NOT_OPEN")


async def test_concurrent_calls_each_see_their_own_caller(file):
    tokens = {name: token_file.add(file, name, [Scope.JUDGE], None) for name in ("a", "b", "Ünï")}
    async with a_server(Echo(), tokens=Tokens.of(file)) as address, grpc.aio.insecure_channel(address) as channel:
        judge = channel.unary_unary("/memecourt.v1.Court/Judge")
        calls = [(name, judge(b"", metadata=bearer(token), timeout=60)) for name, token in tokens.items()] * 1
        calls += [(name, judge(b"", metadata=bearer(token), timeout=60)) for name, token in tokens.items()] * 1
        assert all(name == answer for name, answer in [(name, (await answer).decode()) for name, answer in calls])


async def test_without_a_token_file_every_method_is_open():
    async with a_server() as address, grpc.aio.insecure_channel(address) as channel:
        errors = [await call(channel, method, bearer("whatever")) for method in METHODS]
    assert len(errors) == len(METHODS) and {error.code() for error in errors} <= AUTHENTICATED
    assert ANYBODY.scopes == set(Scope) and ANYBODY.sees("anything")


async def test_health_needs_no_token_but_reflection_does(file):
    token = token_file.add(file, "auditor", [Scope.REVIEW], None)
    ask = reflection_pb2.ServerReflectionRequest(list_services="")
    async with a_server(tokens=Tokens.of(file)) as address, grpc.aio.insecure_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        lives = await health.Check(health_pb2.HealthCheckRequest(service="liveness"), timeout=60)
        reflect = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        # No message is sent: one on its way to a refused call may end it as INTERNAL.
        refused = await reflect(timeout=60).code()
        (listed,) = [answer async for answer in reflect(iter([ask]), timeout=60, metadata=bearer(token))]
        lives, names = lives.status, {service.name for service in listed.list_services_response.service}
    assert lives == health_pb2.HealthCheckResponse.SERVING
    assert refused is grpc.StatusCode.UNAUTHENTICATED
    assert {name for name in names if name.startswith("memecourt.")} == {
        service.full_name for service in wire.DESCRIPTOR.services_by_name.values()
    }
    pool = descriptor_pool.Default()
    assert all(pool.FindServiceByName(name) for name in names)


@pytest.mark.parametrize(
    ("namespaces", "allowed", "forbidden"),
    [(None, ["", "a", "b"], []), (["a"], ["a"], ["b", "", "A", "a "]), (["", "a"], ["", "a"], ["b"])],
)
async def test_a_caller_sees_only_its_namespaces(namespaces, allowed, forbidden):
    set_current(Caller("x", frozenset(Scope), None if namespaces is None else frozenset(namespaces)))
    for namespace in allowed:
        check_namespace(namespace)
    for namespace in forbidden:
        with pytest.raises(NotAllowed) as caught:
            check_namespace(namespace)
        assert (caught.value.reason, caught.value.field) == ("NAMESPACE_NOT_ALLOWED", "content.namespace")


# The token file


def test_a_token_file_written_by_the_command_is_read_back(file):
    first = token_file.add(file, "pipeline", [Scope.JUDGE], ["forum", 'a "quoted" \\ one', "日本"])
    file.write_text("# who is who\n" + file.read_text())
    second = token_file.add(file, "pipeline", [Scope.JUDGE, Scope.REVIEW], None, widen=True)
    tokens = Tokens.of(file)
    assert tokens.caller(first) == Caller(
        "pipeline", frozenset({Scope.JUDGE}), frozenset({"forum", 'a "quoted" \\ one', "日本"})
    )
    assert tokens.caller(second).namespaces is None
    assert first not in file.read_text() and file.read_text().startswith("# who is who")
    assert len(first) >= 43 and first != second

    number = token_file.hash_of(first)[:12]
    (gone,) = token_file.remove(file, "pipeline", number)
    assert gone.sha256 == token_file.hash_of(first)
    tokens = Tokens.of(file)
    assert tokens.caller(first) is None and tokens.caller(second) is not None
    with pytest.raises(BadRequest):
        token_file.remove(file, "pipeline", number)


def test_widening_a_limited_caller_needs_the_widen_option(file):
    token_file.add(file, "forum", [Scope.JUDGE], ["forum", "archive"])
    before = file.read_bytes()
    for namespaces in (None, ["forum", "other"]):
        with pytest.raises(BadRequest) as caught:
            token_file.add(file, "forum", [Scope.JUDGE], namespaces)
        assert caught.value.reason == "TOKEN_WIDENS" and "'archive', 'forum'" in caught.value.message
    assert file.read_bytes() == before
    token_file.add(file, "forum", [Scope.JUDGE], ["archive"])
    token_file.add(file, "somebody else", [Scope.JUDGE], None)
    wide = token_file.add(file, "forum", [Scope.JUDGE], None, widen=True)
    assert Tokens.of(file).caller(wide).namespaces is None


def test_a_token_expires_at_its_time(file, monkeypatch):
    now = datetime.datetime.now(datetime.UTC)
    token = token_file.add(file, "ada", [Scope.JUDGE], None, expires=now + datetime.timedelta(hours=1))
    tokens = Tokens.of(file)
    assert tokens.caller(token).name == "ada"
    expired = token_file.add(file, "ada", [Scope.JUDGE], None, expires=now - datetime.timedelta(seconds=1))
    assert Tokens.of(file).caller(expired) is None

    class Later(datetime.datetime):
        @classmethod
        def now(cls, zone=None):
            return now + datetime.timedelta(hours=2)

    monkeypatch.setattr(token_file, "datetime", Later)
    assert tokens.caller(token) is None, "without the file having changed"
    listed = CliRunner().invoke(cli, ["tokens", "list", "--file", str(file)])
    assert listed.exit_code == 0 and listed.stdout.count("  expired ") == 2


def test_concurrent_additions_to_the_token_file_are_all_stored(file):
    import concurrent.futures

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda i: token_file.add(file, f"caller {i}", [Scope.JUDGE], None), range(24)))
    tokens = Tokens.of(file)
    assert [tokens.caller(token).name for token in made] == [f"caller {i}" for i in range(24)]
    assert [path.name for path in file.parent.iterdir()] == [file.name]


HASH = "0" * 64
GOOD = f'[[token]]\nname = "a"\nsha256 = "{HASH}"\nscopes = ["judge"]\n'


@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace("judge", "everything"),
        GOOD.replace('["judge"]', "[]"),
        GOOD.replace('"a"', '""'),
        GOOD.replace('"a"', '" a"'),
        GOOD.replace('"a"', '"a\\nb"'),
        GOOD.replace(HASH, HASH[1:]),
        GOOD + "namespaces = []\n",
        GOOD + "namespace = 'a'\n",
        GOOD + GOOD,
        GOOD[:-3],
        "tokens = 1\n",
        "\udcff",
    ],
)
def test_malformed_token_files_are_refused(file, text):
    file.write_text(text, errors="surrogateescape")
    with pytest.raises(BadRequest) as caught:
        Tokens.of(file)
    assert HASH not in caught.value.message and str(file) not in caught.value.message
    file.write_text(GOOD)
    assert Tokens.of(file).entries.keys() == {HASH}


def test_a_missing_token_file_is_an_error(file):
    with pytest.raises(BadRequest):
        Tokens.of(file)


# Changes while the server runs


@asynccontextmanager
async def running_beside(work):
    task = asyncio.create_task(work)
    try:
        yield
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def call_repeatedly(channel, errors, counted, metadata=()):
    """Load: authenticated calls must keep passing."""
    while True:
        error = await call(channel, "/memecourt.v1.Docket/GetTrial", metadata)
        counted.append(1)
        if error.code() not in AUTHENTICATED:
            errors.append(error)


async def test_tokens_are_added_and_revoked_without_restart_or_effect_on_others(file, caplog):
    steady = token_file.add(file, "steady", [Scope.REVIEW], None)

    tokens, errors, counted = Tokens.of(file), [], []
    following = follow_files([file], tokens.use, token_file.WHAT, tokens.contents, every_s=0.05)
    async with (
        a_server(tokens=tokens) as address,
        grpc.aio.insecure_channel(address) as channel,
        running_beside(following),
        running_beside(call_repeatedly(channel, errors, counted, bearer(steady))),
    ):

        async def code(token):
            return (await call(channel, "/memecourt.v1.Docket/GetTrial", bearer(token))).code()

        async def is_let_in(token):
            return await code(token) in AUTHENTICATED

        fresh = await asyncio.to_thread(token_file.add, file, "fresh", [Scope.REVIEW], None)
        await until(lambda: is_let_in(fresh))

        whole = file.read_text()
        file.write_text("[[token]]\nname = ")
        await until(lambda: asyncio.sleep(0, "can't be used" in caplog.text))
        assert await is_let_in(fresh)
        file.unlink()
        await until(lambda: asyncio.sleep(0, "can't be read" in caplog.text))
        assert await is_let_in(fresh)
        file.write_text(whole)

        await asyncio.to_thread(token_file.remove, file, "fresh")
        await until(lambda: asyncio.sleep(0, tokens.caller(fresh) is None))
        assert await code(fresh) is grpc.StatusCode.UNAUTHENTICATED
    counted = len(counted)
    assert not errors and counted > 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("after", "expected_end"),
    [
        ("gone", (grpc.StatusCode.UNAUTHENTICATED, "TOKEN_UNKNOWN")),
        ("for another namespace", (grpc.StatusCode.UNAVAILABLE, "TOKEN_CHANGED")),
        ("as it was", None),
    ],
)
def test_revoking_a_token_ends_its_open_streams(tmp_path, file, after, expected_end):
    token = token_file.add(file, "pipeline", [Scope.JUDGE, Scope.REVIEW], ["forum"])
    before = file.read_text()
    texts = {"gone": "", "for another namespace": before.replace('"forum"', '"blog"'), "as it was": before + "# more\n"}

    def request(request_id):
        judge_call = judge_request(IMAGE, request_id=request_id, namespace="forum")
        return wire.JudgeStreamRequest(request=judge_call)

    async def end_of(call):
        while (answer := await call.read()) is not grpc.aio.EOF:
            assert answer

    async def work():
        async with real_court(tmp_path, tokens=file) as served:
            served.reader.wait = asyncio.Event()
            caller_metadata = {"metadata": bearer(token)}
            stream = served.judge.JudgeStream(**caller_metadata)
            await stream.write(request("a"))
            await served.reader.asked.wait()  # the trial has started and waits
            name = wire.RequestName(namespace="forum", request_id="a")
            streams = [
                served.judge.WatchTrial(wire.WatchTrialRequest(request=name), **caller_metadata),
                served.records.WatchReviews(wire.WatchReviewsRequest(from_entry=0), **caller_metadata),
            ]
            for event_stream in streams:
                assert await event_stream.read()
            served.tokens.use((texts[after].encode(),))
            if expected_end is None:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(2):
                        await asyncio.gather(*(end_of(event_stream) for event_stream in streams))
                return []
            ends = [await ended(end_of(event_stream)) for event_stream in streams]
            await stream.write(request("b"))
            served.reader.wait.set()
            answer = await stream.read()  # requests read before the change are answered
            assert answer.request_id == "a" and answer.HasField("verdict")
            return [*ends, await ended(end_of(stream))]

    async def ended(reading):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async with asyncio.timeout(60):
                await reading
        return caught.value.code(), reason(caught.value)

    assert asyncio.run(work()) == ([] if expected_end is None else [expected_end] * 3)


# TLS


class TlsFiles:
    """Certificate authorities and certificates made for a test."""

    def __init__(self, folder):
        self.folder = folder
        self.certificate, self.key, self.callers = folder / "server.pem", folder / "server.key", folder / "callers.pem"
        self.ours, self.theirs, self.strangers = trustme.CA(), trustme.CA(), trustme.CA()
        self.issue(self.ours)
        self.theirs.cert_pem.write_to_path(self.callers)

    def issue(self, authority):
        issued = authority.issue_cert("localhost")
        self.key.write_bytes(issued.private_key_pem.bytes())
        self.certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))

    def settings(self, *, mutual=False):
        return Settings(
            tls_certificate=self.certificate, tls_key=self.key, tls_client_ca=self.callers if mutual else None
        )

    def credentials(self, shown=None, trusted=None):
        root = (trusted or self.ours).cert_pem.bytes()
        if shown is None:
            return grpc.ssl_channel_credentials(root)
        chain = b"".join(blob.bytes() for blob in shown.cert_chain_pems)
        return grpc.ssl_channel_credentials(root, shown.private_key_pem.bytes(), chain)


@pytest.fixture
def tls_files(tmp_path):
    return TlsFiles(tmp_path)


async def outcome(address, credentials=None):
    """Returns the status of one call over a connection of its own."""
    # Otherwise all channels of the process share connections.
    options = [("grpc.use_local_subchannel_pool", 1)]
    channel = (
        grpc.aio.secure_channel(address, credentials, options)
        if credentials
        else grpc.aio.insecure_channel(address, options)
    )
    async with channel:
        return await call(channel, "/memecourt.v1.Docket/GetTrial")


def is_let_in(error):
    """True if a service answered: a refused connection is UNAVAILABLE too, but lacks our details."""
    return rpc_status.from_call(error) is not None and reason(error) == "NOT_IN_SESSION"


async def test_tls_accepts_only_encrypted_connections_that_trust_the_server(tls_files):
    certificates = Certificates.of(tls_files.settings())
    async with a_server(certificates=certificates) as address:
        errors = [
            await outcome(address, tls_files.credentials()),
            await outcome(address),
            await outcome(address, tls_files.credentials(trusted=tls_files.strangers)),
            await outcome(address, tls_files.credentials()),
        ]
    assert [is_let_in(error) for error in errors] == [True, False, False, True]
    assert {error.code() for error in errors[1:3]} == {grpc.StatusCode.UNAVAILABLE}


async def test_mutual_tls_accepts_only_valid_client_certificates(tls_files):
    long_ago = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    tomorrow = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    shown = {
        "valid": tls_files.theirs.issue_cert("caller"),
        "none": None,
        "expired": tls_files.theirs.issue_cert("caller", not_after=long_ago),
        "not yet valid": tls_files.theirs.issue_cert("caller", not_before=tomorrow),
        "of another authority": tls_files.strangers.issue_cert("caller"),
        "of the server's authority": tls_files.ours.issue_cert("caller"),
    }

    certificates = Certificates.of(tls_files.settings(mutual=True))
    async with a_server(certificates=certificates) as address:
        outcomes = {name: await outcome(address, tls_files.credentials(one)) for name, one in shown.items()}
        outcomes["in the clear"] = await outcome(address)
        outcomes["valid again"] = await outcome(address, tls_files.credentials(shown["valid"]))
    assert {name for name, error in outcomes.items() if is_let_in(error)} == {"valid", "valid again"}
    assert {error.code() for error in outcomes.values()} == {grpc.StatusCode.UNAVAILABLE}


async def check_renewal(tls_files, caplog, let_in):
    """Renews the certificates that a server uses; ``let_in(trusted, own)`` says whether it answers such a caller."""
    caller, stranger = tls_files.theirs.issue_cert("caller"), tls_files.strangers.issue_cert("caller")
    assert await let_in(tls_files.ours, caller)
    assert not await let_in(tls_files.ours, stranger)
    # The key does not match the certificate: the pair in use stays.
    key = tls_files.key.read_bytes()
    tls_files.key.write_bytes(trustme.CA().issue_cert("localhost").private_key_pem.bytes())
    await until(lambda: asyncio.sleep(0, "can't be used" in caplog.text))
    assert await let_in(tls_files.ours, caller)
    tls_files.key.write_bytes(key)
    # Both the server's authority and the callers' authority are replaced.
    tls_files.issue(tls_files.strangers)
    tls_files.strangers.cert_pem.write_to_path(tls_files.callers)
    await until(lambda: let_in(tls_files.strangers, stranger))
    assert not await let_in(tls_files.ours, caller)
    assert not await let_in(tls_files.strangers, caller)


async def test_renewed_certificates_are_used_without_restart_or_lost_connections(tls_files, caplog):
    certificates, errors, counted = Certificates.of(tls_files.settings(mutual=True)), [], []
    following = follow_files(certificates.paths, certificates.use, "certificates", certificates.contents, every_s=0.05)
    async with (
        a_server(certificates=certificates) as address,
        grpc.aio.secure_channel(address, tls_files.credentials(tls_files.theirs.issue_cert("caller"))) as old,
        running_beside(following),
        running_beside(call_repeatedly(old, errors, counted)),
    ):

        async def let_in(trusted, own):
            return is_let_in(await outcome(address, tls_files.credentials(own, trusted=trusted)))

        await check_renewal(tls_files, caplog, let_in)
        before = len(counted)
        await until(lambda: asyncio.sleep(0, len(counted) > before + 5))
    counted = len(counted)
    assert not errors and counted > 10


async def test_renewed_certificates_are_used_over_http_without_lost_connections(tls_files, caplog, monkeypatch):
    caplog.set_level("INFO", logger="memecourt.server")
    monkeypatch.setattr("serving.http.listen.follow_files", partial(follow_files, every_s=0.05))
    renewed = asyncio.Event()

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/later":
            await renewed.wait()
        await send({"type": "http.response.body", "body": b"here"})

    def client_with(trusted, certificate):
        context = ssl.create_default_context(cadata=trusted.cert_pem.bytes().decode())
        certificate.configure_cert(context)
        return httpx2.AsyncClient(verify=context, trust_env=False, timeout=60)

    async def let_in(trusted, own):
        async with client_with(trusted, own) as client:
            try:
                return (await client.get(url)).text == "here"
            except httpx2.TransportError:
                return False

    listener = Listener("The test", field="test", example="", at_once=8)
    async with (
        open_listener(listener, app, tls_files.settings(mutual=True), "127.0.0.1:0") as url,
        client_with(tls_files.ours, tls_files.theirs.issue_cert("caller")) as old,
        AsyncExitStack() as stack,
    ):
        url = url.replace("127.0.0.1", "localhost")
        answer = await stack.enter_async_context(old.stream("GET", f"{url}/later"))
        await check_renewal(tls_files, caplog, let_in)
        renewed.set()
        assert await answer.aread() == b"here"
    assert "The certificate of the test has changed and is in use" in caplog.text


HANDSHAKES = """
import asyncio, ssl, socket, sys, threading
from serving.access.tls import Certificates
from serving.rpc.server import Methods
from serving.rpc.server import make_server
from serving.settings import Settings
from tests.support.access import services

def shake_hands(port, trusted):
    for _ in range(150):
        with socket.create_connection(("localhost", port), timeout=60) as plain:
            with trusted.wrap_socket(plain, server_hostname="localhost"):
                pass

async def main(certificate, key, authority):
    certificates = Certificates.of(Settings(tls_certificate=certificate, tls_key=key))
    server, _ = await make_server(Methods(services()[0]))
    port = server.add_secure_port("localhost:0", certificates.credentials())
    await server.start()
    trusted = ssl.create_default_context(cafile=authority)
    trusted.set_alpn_protocols(["h2"])
    threads = [asyncio.to_thread(shake_hands, port, trusted) for _ in range(16)]
    shaking = asyncio.gather(*threads)
    while not shaking.done():
        await asyncio.sleep(0.5)
        certificates.contents = (*[*certificates.contents],)  # renewed
    await shaking
    await server.stop(0)

asyncio.run(main(*sys.argv[1:]))
print("all well")
"""


@pytest.mark.slow
def test_renewing_certificates_during_many_handshakes_does_not_crash(tls_files):
    """The library frees a replaced certificate while a handshake that starts with it still uses it."""
    authority = tls_files.folder / "authority.pem"
    tls_files.ours.cert_pem.write_to_path(authority)
    result = subprocess.run(
        [sys.executable, "-c", HANDSHAKES, tls_files.certificate, tls_files.key, authority],
        capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert (result.returncode, result.stdout) == (0, "all well\n"), result.stderr[-2000:]


@pytest.mark.parametrize(
    ("broken_settings", "field"),
    [
        (lambda p: {"tls_key": None}, "tls_key"),
        (lambda p: {"tls_certificate": None}, "tls_certificate"),
        (lambda p: {"tls_certificate": None, "tls_key": None, "tls_client_ca": p.callers}, "tls_certificate"),
        (lambda p: {"tls_key": p.folder / "none"}, None),
        (lambda p: {"tls_key": p.certificate}, None),
        (lambda p: {"tls_certificate": p.callers}, None),
        (lambda p: {"tls_client_ca": p.key}, None),
    ],
    ids=["no key", "no certificate", "callers' alone", "not there", "no key in it", "another's key", "no authority"],
)
def test_unusable_certificates_are_refused_at_start(tls_files, broken_settings, field):
    valid_settings = {"tls_certificate": tls_files.certificate, "tls_key": tls_files.key}
    assert Certificates.of(Settings(**valid_settings)) is not None
    with pytest.raises(BadRequest) as caught:
        Certificates.of(Settings(**{**valid_settings, **broken_settings(tls_files)}))
    assert caught.value.field == field and str(tls_files.folder) not in caught.value.message
    assert Certificates.of(Settings()) is None


def test_an_expired_server_certificate_is_logged(tls_files, caplog):
    assert Certificates.of(tls_files.settings()) is not None and not caplog.records
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    expired = tls_files.ours.issue_cert("127.0.0.1", not_after=yesterday)
    tls_files.certificate.write_bytes(b"".join(each.bytes() for each in expired.cert_chain_pems))
    tls_files.key.write_bytes(expired.private_key_pem.bytes())
    assert Certificates.of(tls_files.settings()) is not None
    assert [(record.levelname, record.name) for record in caplog.records] == [("WARNING", "memecourt.server")]
    assert "has expired, and callers refuse it: replace its file" in caplog.text


def test_pipes_are_refused_as_token_and_certificate_files(tls_files, tmp_path):
    """A pipe that is read again is empty, so no token is valid; a pipe without a writer blocks the server for ever."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for read in (
        lambda: Tokens.of(pipe),
        lambda: Certificates.of(Settings(tls_certificate=pipe, tls_key=tls_files.key)),
    ):
        with pytest.raises(BadRequest, match=r"a pipe or a device is no file\. Give a file") as caught:
            read()
        assert caught.value.reason == "FILE_UNREADABLE" and str(tmp_path) not in caught.value.message


def test_a_password_protected_key_is_refused_without_a_prompt(tls_files):
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(tls_files.key.read_bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"some password"),
    )
    tls_files.key.write_bytes(locked)
    with pytest.raises(BadRequest, match="without a password"):
        Certificates.of(tls_files.settings())


# Oversized and unknown calls


@pytest.mark.parametrize(("excess_bytes", "codes"), [(0, AUTHENTICATED), (1, {grpc.StatusCode.RESOURCE_EXHAUSTED})])
async def test_messages_are_accepted_up_to_the_size_limit(excess_bytes, codes):
    message = wire.AddPrecedentRequest(image=bytes(MESSAGE_BYTES + excess_bytes - 5)).SerializeToString()
    assert len(message) == MESSAGE_BYTES + excess_bytes

    options = [("grpc.max_send_message_length", -1)]
    async with a_server() as address, grpc.aio.insecure_channel(address, options=options) as channel:
        assert (await call(channel, "/memecourt.v1.Precedents/AddPrecedent", message=message)).code() in codes


@pytest.mark.parametrize("tokens", [False, True])
async def test_unknown_methods_are_unimplemented(file, tokens):
    token = token_file.add(file, "pipeline", [Scope.REVIEW], None)
    unknown = [
        "/memecourt.v1.Court/Acquit",
        "/memecourt.v2.Court/Judge",
        "/none/none",
        "/",
        "/memecourt.v1.Court",
        "/memecourt.v1.Court/",
    ]

    known = Tokens.of(file) if tokens else None
    async with a_server(tokens=known) as address, grpc.aio.insecure_channel(address) as channel:
        with_token = [await call(channel, method, bearer(token)) for method in unknown]
        without = [await call(channel, method) for method in unknown]
    assert {error.code() for error in with_token} == {grpc.StatusCode.UNIMPLEMENTED}
    expected = grpc.StatusCode.UNAUTHENTICATED if tokens else grpc.StatusCode.UNIMPLEMENTED
    assert {error.code() for error in without} == {expected}


async def test_oversized_metadata_is_refused_and_the_connection_survives():
    async with a_server() as address, grpc.aio.insecure_channel(address) as channel:
        few, much, again = [
            await call(channel, "/memecourt.v1.Docket/GetTrial", [("x-much", "y" * size)])
            for size in (1000, 1_000_000, 1000)
        ]
    assert {few.code(), again.code()} <= AUTHENTICATED
    assert much.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_with_reflection_off_the_methods_are_not_listed():
    async with a_server(reflect=False) as address, grpc.aio.insecure_channel(address) as channel:
        reflect = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        # No message is sent, for the same reason as above.
        code, judged = await reflect(timeout=60).code(), await call(channel, "/memecourt.v1.Docket/GetTrial")
    assert code is grpc.StatusCode.UNIMPLEMENTED and is_let_in(judged)
