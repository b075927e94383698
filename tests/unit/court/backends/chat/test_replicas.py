"""Tests of several servers of one model, over real sockets: a trial uses one server and fails over when that is
gone.
"""

import asyncio
import hashlib
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import pytest

from court.backends.chat.client import ChatCompletions, http_client
from court.backends.chat.wire import Capabilities, LogProbs, Thinking, weakest
from court.backends.http import Load
from court.errors import CourtError, ModelRefused, Unavailable
from court.events import Procedure, VerdictGiven
from court.meme import Meme
from court.ports import ChatRequest
from court.record import TrialAborted, TrialState
from court.roles import RoleModel, RoleModels
from court.trial import Court, TrialCase
from eval.standin.replies import meme_text
from eval.standin.server import FakeModelServer, serving
from eval.standin.settings import FEATURES
from eval.standin.settings import Settings as Behaviour
from serving.models.connect import connect_models
from serving.settings import Settings
from tests.support.cast import PictureFinder
from tests.support.fakes import FakeReader, H, RecordingSink, a_picture, findings

HELLO = ChatRequest("s", ("hello",), None, 8)


def pixels(number):
    return hashlib.sha256(f"picture {number}".encode()).hexdigest()


def replicated_model(*urls, **options):
    """A model at servers that no test connects to."""
    return ChatCompletions.joined([ChatCompletions(base_url=url, model="m", **options) for url in urls])


# Choice of server


def test_each_key_has_a_fixed_server_and_keys_are_spread_evenly():
    model = replicated_model(*(f"http://s{n}:1/v1" for n in range(4)))
    first = [model.pinned(pixels(n)).urls[0] for n in range(4000)]
    assert first == [model.pinned(pixels(n)).urls[0] for n in range(4000)]
    counts = Counter(first)
    # Binomial, 4000 trials of 1/4: six standard deviations are 164.
    assert set(counts) == set(model.urls) and all(abs(count - 1000) < 164 for count in counts.values())


def test_removing_a_server_moves_only_its_keys_to_the_next_in_order():
    urls = [f"http://s{n}:1/v1" for n in range(4)]
    all_servers, remaining = replicated_model(*urls), replicated_model(*urls[1:])
    for n in range(500):
        before, after = all_servers.pinned(pixels(n)).urls, remaining.pinned(pixels(n)).urls
        assert after == tuple(url for url in before if url != urls[0])


def test_order_of_the_server_urls_does_not_matter():
    urls = [f"http://s{n}:1/v1" for n in range(3)]
    one, other = replicated_model(*urls), replicated_model(*reversed(urls))
    assert all(one.pinned(pixels(n)).urls == other.pinned(pixels(n)).urls for n in range(50))


def test_common_capabilities_are_those_of_the_weakest_server():
    strong = Capabilities(True, 8, LogProbs.CHOSEN, True, True)
    assert weakest([strong]) == strong
    assert weakest([strong, Capabilities(False, 2, LogProbs.TOP, False, False)]) == Capabilities(
        False, 2, LogProbs.TOP, False, False
    )
    assert weakest([strong, Capabilities(True, 9, LogProbs.NONE, True, True)]).log_probs is LogProbs.NONE
    assert weakest([Capabilities(thinking=each) for each in Thinking]).thinking is Thinking.ALWAYS
    assert weakest([Capabilities(), Capabilities(thinking=Thinking.EFFORT)]).thinking is Thinking.EFFORT
    # They think only as all of them can.
    able = [Capabilities(thinks_by=each, thought_limit="thinking_token_budget") for each in Thinking]
    none, template, effort, always = able
    assert weakest([template, always]).thinks_by is Thinking.TEMPLATE and weakest([always, always]) == always
    assert weakest([template, effort]).thinks_by is weakest([template, none]).thinks_by is Thinking.NONE
    assert weakest([template, Capabilities(thinks_by=Thinking.TEMPLATE)]).thought_limit == ""


def test_roles_that_share_servers_share_the_choice_of_a_trial():
    shared, separate = replicated_model("http://a:1/v1", "http://b:1/v1"), replicated_model("http://c:1/v1")
    role_models = RoleModels(
        RoleModel(shared, servers=shared),
        *[RoleModel(shared, servers=shared)] * 2,
        RoleModel(separate, servers=separate),
    )
    pinned = role_models.pinned(pixels(1))
    assert pinned.proposer.model is pinned.accuser.model is pinned.defender.model
    assert pinned.proposer.model is not shared
    assert pinned.judge.model.urls == ("http://c:1/v1",)
    assert set(pinned.servers["PROPOSER"]) == set(shared.urls)
    # Another trial of the same picture starts at the same server, but fails over independently.
    second_trial = role_models.pinned(pixels(1))
    assert second_trial.servers == pinned.servers and second_trial.proposer.model is not pinned.proposer.model


def test_room_is_counted_per_server():
    loads = [Load(1), Load(1)]
    model = ChatCompletions.joined(
        [ChatCompletions(base_url=f"http://{n}:1/v1", model="m", load=load) for n, load in enumerate(loads)]
    )
    trials = {url: next(p for n in range(99) if (p := model.pinned(pixels(n))).urls[0] == url) for url in model.urls}
    for trial in trials.values():
        trial._replicas.choose()
    with loads[0].call():
        assert [trial.room() for trial in trials.values()] == [False, True]
        assert model.pinned(pixels(0)).room(), "a trial that has not begun can go to the other server"
    assert trials["http://0:1/v1"].room()


def test_trial_takes_the_least_busy_server_and_stays_there():
    loads = [Load(1) for _ in range(3)]
    model = ChatCompletions.joined(
        [ChatCompletions(base_url=f"http://{n}:1/v1", model="m", load=load) for n, load in enumerate(loads)]
    )
    trial = model.pinned(pixels(0))
    idle = trial._replicas.choose()
    assert idle.url == trial.urls[0], "of equally busy servers, the one that may have the picture cached"
    with idle.load.call(), idle.load.call():
        assert trial._replicas.choose() is idle, "its cache has the beginning of the trial"
        others = []
        for n in range(20):
            other = model.pinned(pixels(n))._replicas.choose()
            others.append(other.load.call())
            others[-1].__enter__()
        # Twenty more calls, each at the least busy server: with the two before, 22 on three servers.
        assert sorted(load.in_flight for load in loads) == [7, 7, 8]


# Failover


@asynccontextmanager
async def coming_and_going(behaviour=None):
    """A model at two stand-ins; ``end(n)`` stops one of them, ``start(n)`` has it listen at its old address."""
    async with AsyncExitStack() as stack:
        servers = [FakeModelServer(behaviour or Behaviour()) for _ in range(2)]
        running: dict[int, AsyncExitStack] = {}
        ports = [0, 0]

        async def start(n):
            running[n] = AsyncExitStack()
            ports[n] = await running[n].enter_async_context(serving(servers[n], ports[n]))

        async def end(n):
            if n in running:
                await running.pop(n).aclose()

        for n in range(2):
            await start(n)
        http = await stack.enter_async_context(http_client())
        urls = [f"http://127.0.0.1:{port}/v1" for port in ports]
        model = ChatCompletions.joined(
            [ChatCompletions(base_url=url, model="stand-in", http=http, pause_s=0.01) for url in urls]
        )
        try:
            yield model, servers, start, end
        finally:
            for n in list(running):
                await end(n)


@asynccontextmanager
async def two_servers(**options):
    """A model at two stand-ins; yields the stand-ins by their addresses, and functions that stop each of them."""
    async with coming_and_going(Behaviour(play=True, words=4, **options)) as (model, servers, _start, end):
        model.capabilities = Capabilities(picture_ids=True, log_probs=LogProbs.CHOSEN, cached_tokens=True)
        ends = {url: partial(end, number) for number, url in enumerate(model.urls)}
        yield model, dict(zip(model.urls, servers, strict=True)), ends


async def test_call_fails_over_to_the_next_server_and_later_calls_start_there():
    async with asyncio.timeout(200), two_servers() as (model, servers, end):
        pinned = model.pinned(pixels(0))
        first, second = pinned.urls
        before = await pinned.reply(HELLO, within_s=60)
        await end[first]()
        after = [await pinned.reply(HELLO, within_s=60) for _ in range(3)]
        assert before.server == first and {reply.server for reply in after} == {second}
        assert servers[first].stats.calls == 1 and servers[second].stats.calls == 3
        assert await pinned.odds(HELLO, ("A", "B"), within_s=60)


async def test_request_that_may_have_killed_a_server_is_sent_to_only_one_more():
    async with asyncio.timeout(200), two_servers() as (model, servers, _end):
        for server in servers.values():
            server.faults.script(["reset"] * 9)
        with pytest.raises(Unavailable) as caught:
            await model.pinned(pixels(0)).reply(HELLO, within_s=60)
        assert caught.value.reason == "MODEL_GONE"
        assert [server.stats.calls for server in servers.values()] == [1, 1]


async def test_time_of_the_last_answer_is_shared_by_all_users_of_a_server():
    async with asyncio.timeout(200), two_servers() as (model, servers, _end):
        never = float("-inf")
        pinned = model.pinned(pixels(0))
        await model.listed(within_s=60)
        assert await pinned._token_id("A", 60)
        servers[pinned.urls[0]].faults.script(["garbage"])
        with pytest.raises(Unavailable):
            await pinned.reply(HELLO, within_s=60)
        assert model.answered_at == pinned.answered_at == never  # none of these calls was an answered chat
        await pinned.reply(HELLO, within_s=60)
        assert model.answered_at == pinned.answered_at > never
        apart = {alone.urls[0]: alone.answered_at for alone in model.apart()}
        assert apart == dict(zip(pinned.urls, (pinned.answered_at, never), strict=True))


@pytest.mark.parametrize("fault", ["429", "garbage", "cut"])
async def test_faulty_but_reachable_server_is_not_abandoned(fault):
    async with asyncio.timeout(200), two_servers() as (model, servers, _end):
        pinned = model.pinned(pixels(0))
        servers[pinned.urls[0]].faults.script([fault])
        try:
            await pinned.reply(HELLO, within_s=60)
        except CourtError as error:
            assert error.reason in ("MODEL_GARBLED", "MODEL_GONE")
        assert servers[pinned.urls[1]].stats.calls == 0


async def test_call_fails_in_time_when_all_servers_are_gone():
    async with asyncio.timeout(200), two_servers() as (model, _servers, end):
        for close in end.values():
            await close()
        with pytest.raises(Unavailable) as caught:
            await model.pinned(pixels(0)).reply(HELLO, within_s=60)
        assert caught.value.reason == "MODEL_GONE"


async def test_recovered_server_is_used_again_when_the_other_goes_away():
    async with asyncio.timeout(200), two_servers() as (model, servers, end):
        pinned = model.pinned(pixels(0))
        first, second = pinned.urls
        servers[first].faults.script(["reset"])
        assert (await pinned.reply(HELLO, within_s=60)).server == second
        await end[second]()
        assert (await pinned.reply(HELLO, within_s=60)).server == first


# Recovery


ENOUGH = 30
"""Enough pictures that each of two servers, whose ports are random, is almost surely preferred by some of them."""


async def start_trial(model, n):
    """Begins a trial of a picture; returns the number of the server that it went to."""
    reply = await model.pinned(pixels(n)).reply(HELLO, within_s=60)
    return model.urls.index(reply.server)


@pytest.fixture
def quick_rechecks(monkeypatch):
    monkeypatch.setattr("court.backends.chat.client._RECHECK_S", 0.05)
    monkeypatch.setattr("court.backends.chat.client._RECHECK_MAX_S", 0.1)


async def test_new_trials_avoid_a_gone_server_and_do_not_wait_for_its_rechecks(quick_rechecks, monkeypatch):
    async with asyncio.timeout(200), coming_and_going() as (model, servers, start, end):
        assert {await start_trial(model, n) for n in range(ENOUGH)} == {0, 1}
        await end(0)
        assert [await start_trial(model, n) for n in range(ENOUGH)] == [1] * ENOUGH
        calls = servers[1].stats.calls
        assert model._servers[0].gone_at is not None
        await start(0)
        monkeypatch.setattr("court.backends.chat.client.SLOW_START_S", 1e-6)
        while model._servers[0].gone_at is not None:
            await start_trial(model, 0)
            await asyncio.sleep(0.02)
        assert servers[1].stats.calls > calls, "meanwhile trials began at the other server"
        assert {await start_trial(model, n) for n in range(ENOUGH)} == {0, 1}


async def test_recovered_server_gets_its_share_gradually(quick_rechecks, monkeypatch):
    async with asyncio.timeout(200), coming_and_going() as (model, _servers, start, end):
        await end(0)
        # Which server a picture prefers depends on the ports: of a few pictures, none may prefer this one.
        for n in range(ENOUGH):
            await start_trial(model, n)
        await start(0)
        while model._servers[0].gone_at is not None:
            await start_trial(model, 0)
            await asyncio.sleep(0.02)
        monkeypatch.setattr("court.backends.chat.client.SLOW_START_S", 1000.0)

        def shares(count):
            """Calls in flight at each server after this number of trials has begun and none has ended."""
            start_trial = [model.pinned(pixels(n))._replicas for n in range(count)]
            calls = []
            for replicas in start_trial:
                calls.append(replicas.choose().load.call())
                calls[-1].__enter__()
            found = [server.load.in_flight for server in model._servers]
            for call in calls:
                call.__exit__(None, None, None)
            return found

        early = shares(44)
        assert early == [4, 40], "a tenth as many as the other server"
        model._servers[0].back_at -= 500
        assert shares(45) == [15, 30]
        model._servers[0].back_at -= 500
        assert shares(44) == [22, 22]


async def test_server_error_moves_only_the_affected_trial(quick_rechecks):
    """The server is reachable: that one request is too much for it says nothing about the next."""
    async with asyncio.timeout(200), coming_and_going() as (model, servers, _start, _end):
        trial = model.pinned(pixels(0))
        first = model.urls.index(trial.urls[0])
        servers[first].faults.script(["500"])
        replies = [await trial.reply(HELLO, within_s=60) for _ in range(3)]
        assert {reply.server for reply in replies} == {model.urls[1 - first]}
        assert model._servers[first].gone_at is None
        assert await start_trial(model, 0) == first


async def test_first_recovered_server_is_found_after_all_were_gone(quick_rechecks):
    async with asyncio.timeout(200), coming_and_going() as (model, _servers, start, end):
        await end(0)
        await end(1)
        with pytest.raises(Unavailable):
            await start_trial(model, 0)
        await start(1)
        assert await start_trial(model, 0) == 1


async def test_calls_outside_a_trial_are_spread_too():
    async with asyncio.timeout(200), coming_and_going() as (model, servers, _start, _end):
        await asyncio.gather(*(model.reply(HELLO, within_s=60) for _ in range(20)))
        assert [server.stats.calls for server in servers] == [10, 10]


# Whole trials


def court_at(model):
    role_model = RoleModel(model, servers=model)
    return Court(
        finder=PictureFinder(findings([H] * 5)),
        text_reader=FakeReader(),
        software="test",
        role_models=RoleModels(role_model, role_model, role_model, role_model),
    )


async def trial_of(court, number, watch=None):
    case = TrialCase(f"t{number}", Meme(a_picture(pixels(number)), meme_text(str(number), 2)), Procedure.FULL)
    return await court.run(case, watch or RecordingSink())


def answered_by(record):
    calls = [event.call for event in record.events if getattr(event, "call", None)]
    odds = [event.odds.call for event in record.all(VerdictGiven)]
    return {call.server for call in (*calls, *odds)}


async def test_trial_stays_at_one_server_and_trials_are_spread_over_both():
    async with asyncio.timeout(200), two_servers() as (model, servers, _end):
        court = court_at(model)
        records = await asyncio.gather(*(trial_of(court, number) for number in range(16)))
        repeated = await trial_of(court, 3)
        records = [*records, repeated]
    for record in records:
        (server,) = answered_by(record)
        assert server in servers and set(record.opened.servers["JUDGE"]) == set(servers)
    counts = Counter(next(iter(answered_by(record))) for record in records[:16])
    # Spread by calls in flight, of which a trial has one or two at a time: about half of the trials each.
    assert set(counts) == set(servers) and min(counts.values()) >= 5
    # Without competing calls, a picture goes to its preferred server, every time.
    assert answered_by(records[-1]) == {records[-1].opened.servers["JUDGE"][0]}
    assert records[-1].opened.servers == records[3].opened.servers


async def test_trial_is_decided_by_the_other_server_when_its_own_goes_away():
    async with asyncio.timeout(200), two_servers(call_s=0.02) as (model, _servers, end):
        first, second = model.pinned(pixels(0)).urls
        notes = RecordingSink()

        async def watch(*events):
            await notes(*events)
            if events[-1].kind == "AnswerGiven":
                await end[first]()

        record = await trial_of(court_at(model), 0, watch)
    assert record.state is TrialState.DECIDED
    assert answered_by(record) == {first, second}
    assert record.last(VerdictGiven).call.server == second
    assert record.opened.servers["PROPOSER"] == (first, second)


async def test_same_trial_fails_with_a_single_server():
    """Shows that the verdict in the test above is due to the other server."""
    async with asyncio.timeout(200), two_servers(call_s=0.02) as (_model, servers, end):
        url, _ = servers
        async with http_client() as http:
            alone = ChatCompletions(base_url=url, model="stand-in", http=http, attempts=1)

            async def watch(*events):
                if events[-1].kind == "AnswerGiven":
                    await end[url]()

            with pytest.raises(TrialAborted) as caught:
                await trial_of(court_at(alone), 0, watch)
        assert caught.value.reason == "MODEL_GONE"


# Connecting models from settings


async def connect(behaviours, **llm):
    """The models for stand-ins with these behaviours, the messages printed, and the addresses."""
    messages = []
    async with AsyncExitStack() as stack:
        ports = [await stack.enter_async_context(serving(FakeModelServer(behaviour))) for behaviour in behaviours]
        urls = [f"http://127.0.0.1:{port}/v1" for port in ports]
        settings = Settings(llm={"url": urls, "model": "stand-in", **llm})
        return await connect_models(settings, stack, messages.append), messages, urls


def test_every_server_is_probed_and_the_weakest_sets_the_capabilities():
    role_models, messages, urls = asyncio.run(
        connect([Behaviour(), Behaviour(features=FEATURES - {"json_schema"}, pictures=7)], max_tokens=1500)
    )
    assert not role_models.judge.model.capabilities.json_schema
    assert role_models.judge.model.capabilities.picture_ids
    assert role_models.judge.max_tokens == 1500
    assert role_models.judge.model is role_models.accuser.model and role_models.judge.servers.urls == tuple(urls)
    output = "\n".join(messages)
    assert "(1 of 2)" in output and "(2 of 2): It does not keep replies to a JSON schema" in output
    assert "only for what all of them can do" in output
    assert not any(url in output for url in urls)


def test_record_settings_say_how_thinking_is_turned_off_if_there_is_any():
    role_models, *_ = asyncio.run(connect([Behaviour(), Behaviour(thinks="template")]))
    assert role_models.settings(1200)["thinking"] == dict.fromkeys(role_models.models, "TEMPLATE")
    plain, *_ = asyncio.run(connect([Behaviour()]))
    assert "thinking" not in plain.settings(1200)  # as in records of earlier versions


def test_every_server_must_serve_the_model():
    with pytest.raises(ModelRefused, match="does not list the model"):
        asyncio.run(connect([Behaviour(), Behaviour(model="another")]))


def test_identical_servers_are_not_reported_as_different():
    _, messages, _ = asyncio.run(connect([Behaviour(), Behaviour()]))
    assert not any("differ" in message for message in messages)


async def test_one_of_two_servers_suffices_and_the_other_is_named():
    messages = []
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(serving(FakeModelServer(Behaviour())))
        reachable, unreachable = f"http://127.0.0.1:{port}/v1", "http://127.0.0.1:1/v1"
        settings = Settings(llm={"url": [unreachable, reachable], "model": "stand-in"})
        role_models = await connect_models(settings, stack, messages.append)
        reply = await role_models.judge.model.reply(HELLO, within_s=60)
    urls = role_models.judge.servers.urls
    assert urls == (unreachable, reachable), "cached replies are stored under these addresses"
    assert reply.server == reachable and any(unreachable in message for message in messages)
    assert any("1 of 2 servers answer" in message for message in messages)


async def test_error_names_all_servers_when_none_answers():
    with pytest.raises(Unavailable, match=r"http://127\.0\.0\.1:1/v1, http://127\.0\.0\.1:2/v1"):
        async with AsyncExitStack() as stack:
            urls = ["http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1"]
            await connect_models(Settings(llm={"url": urls, "model": "stand-in"}), stack, lambda _: None)
