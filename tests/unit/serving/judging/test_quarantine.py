"""Tests of quarantine: inputs that killed a picture reader, text reader or model server are not tried again."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from court.backends.chat.client import ChatCompletions
from court.errors import BadPicture, Unavailable
from court.events import Procedure, TrialFailed
from court.record import TrialAborted, TrialState
from court.roles import RoleModel
from court.settings import TrialSettings
from serving.docket.store.requests import RequestName
from tests.support.cast import Cast, frames_of
from tests.support.chat_completions import HELLO, court_and_server, failing, wait_for_stats
from tests.support.gates import call_through
from tests.support.reception import ASK, Turns, other, trials_in, wait_until_idle
from tests.support.reception import town as town

FULL = replace(ASK, procedure=Procedure.FULL)


async def refusal(runner, ask):
    with pytest.raises(BadPicture) as caught:
        await runner.answer(ask)
    return caught.value


# Files that kill a worker process.


@pytest.mark.parametrize("reason", ["PICTURE_KILLS_READER", "PICTURE_TOO_COSTLY"])
async def test_a_picture_that_killed_its_reader_is_not_decoded_again(town, reason):
    async with town.server() as runner:
        town.pictures.errors[ASK.image] = BadPicture("no", reason=reason)
        reasons = [(await refusal(runner, ask)).reason for ask in (ASK, ASK, other(), other(text=None))]
        assert reasons == [reason] + ["QUARANTINED"] * 3
        assert town.pictures.decoded == 1
        assert (await runner.answer(other(image=b"fine|file"))).record.state is TrialState.DECIDED
        assert len(await trials_in(runner.executor.docket)) == 1


async def test_picture_is_refused_after_its_reader_was_killed_externally_twice(town):
    async with town.server() as runner:
        town.pictures.errors[ASK.image] = Unavailable("no", reason="PICTURE_READER_KILLED")
        town.pictures.errors[b"other|file"] = Unavailable("no", reason="WORKER_UNAVAILABLE")
        reasons = []
        for ask in (ASK, other(image=b"other|file")):
            for _ in range(3):
                with pytest.raises((BadPicture, Unavailable)) as caught:
                    await runner.answer(ask)
                reasons.append(caught.value.reason)
        assert reasons == ["PICTURE_READER_KILLED"] * 2 + ["QUARANTINED"] + ["WORKER_UNAVAILABLE"] * 3


async def test_successful_decode_clears_an_external_kill_of_the_picture_reader(town):
    async with town.server() as runner:
        outcomes = []
        for number, killed in enumerate((True, False, True, True, True)):
            town.pictures.errors = {ASK.image: Unavailable("no", reason="PICTURE_READER_KILLED")} if killed else {}
            try:
                await runner.answer(replace(ASK, request_id=f"r{number}", try_anew=True))
                outcomes.append("decided")
            except (BadPicture, Unavailable) as error:
                outcomes.append(error.reason)
        assert outcomes == ["PICTURE_READER_KILLED", "decided", *["PICTURE_READER_KILLED"] * 2, "QUARANTINED"]


async def test_picture_is_withheld_from_the_text_reader_after_two_external_kills(town):
    async with town.server() as runner:
        town.reader.result = Unavailable("no", reason="TEXT_READER_KILLED")
        outcomes = []
        for number in range(3):
            with pytest.raises((BadPicture, TrialAborted)) as caught:
                await runner.answer(replace(ASK, text=None, request_id=f"r{number}"))
            outcomes.append(caught.value.reason)
        assert outcomes == ["TEXT_READER_KILLED"] * 2 + ["QUARANTINED"] and town.reader.calls == 2


@pytest.mark.parametrize("how", ["by another trial", "by the resumed trial", "before a trial"])
async def test_successful_text_reading_clears_an_external_kill_of_the_text_reader(town, how):
    second = "AWAY" if how == "before a trial" else "decided"
    async with town.server() as runner:
        outcomes = []
        for number, killed in enumerate((True, False, True, True, True)):
            town.reader.result = Unavailable("no", reason="TEXT_READER_KILLED") if killed else "text on the picture"
            if how == "before a trial":  # a near-duplicate search reads the text before the trial
                runner._known._near = None if killed else _UnavailableSearch()
            name = "r0" if how == "by the resumed trial" and number == 1 else f"r{number}"
            ask = replace(ASK, text=None, request_id=name, try_anew=how != "before a trial")
            outcomes += await outcomes_of(runner, ask, 1)
        assert outcomes == ["TEXT_READER_KILLED", second, *["TEXT_READER_KILLED"] * 2, "QUARANTINED"]


class _UnavailableSearch:
    def __init__(self, reason="AWAY"):
        self.reason = reason

    async def same(self, *_, **__):
        raise Unavailable("Memes tried before can't be searched now.", reason=self.reason)


ONCE = ["COMPARER_FAILED", "QUARANTINED", "QUARANTINED"]


@pytest.mark.parametrize("before_a_trial", [False, True])
@pytest.mark.parametrize(
    "expected",
    [
        ONCE,
        *([reason, reason, "QUARANTINED"] for reason in ("COMPARER_KILLED", "ENCODER_ENDED", "ENCODER_STUCK")),
        ["PRECEDENTS_AWAY"] * 3,
    ],
    ids=lambda expected: expected[0],
)
async def test_picture_that_repeatedly_breaks_its_comparison_is_quarantined(
    town, monkeypatch, expected, before_a_trial
):
    """Quarantined after one failure of a dedicated process, after two where another picture may be to blame."""
    reason = expected[0]

    async def find(**_):
        raise Unavailable("no", reason=reason)

    async with town.server() as runner:
        if before_a_trial:
            runner._known._near = _UnavailableSearch(reason)
        else:
            monkeypatch.setattr(runner.executor.court.finder, "find", find)
        asks = [replace(ASK, request_id=f"r{number}", try_anew=not before_a_trial) for number in range(3)]
        assert [outcome for ask in asks for outcome in await outcomes_of(runner, ask, 1)] == expected


async def test_successful_comparison_clears_an_earlier_encoder_exit(town, monkeypatch):
    async with town.server() as runner:
        outcomes, original_find = [], runner.executor.court.finder.find
        for number, ends in enumerate((True, False, True, True, True)):

            async def find(*, ends=ends, **options):
                if ends:
                    raise Unavailable("no", reason="ENCODER_ENDED")
                return await original_find(**options)

            monkeypatch.setattr(runner.executor.court.finder, "find", find)
            outcomes += await outcomes_of(runner, replace(ASK, request_id=f"r{number}", try_anew=True), 1)
        assert outcomes == ["ENCODER_ENDED", "decided", "ENCODER_ENDED", "ENCODER_ENDED", "QUARANTINED"]


async def test_quarantine_by_the_text_reader_outlasts_a_trial_begun_earlier(town):
    async with town.server() as runner:
        town.reader.wait = asyncio.Event()
        earlier = asyncio.ensure_future(outcomes_of(runner, replace(ASK, text=None, try_anew=True), 1))
        await town.reader.asked.wait()
        waiting, town.reader.wait = town.reader.wait, None
        text, town.reader.result = town.reader.result, Unavailable("no", reason="TEXT_READER_FAILED")
        outcomes = await outcomes_of(runner, replace(ASK, text=None, request_id="r2", try_anew=True), 1)
        town.reader.result = text
        waiting.set()
        outcomes += await earlier
        assert (outcomes + await outcomes_of(runner, replace(ASK, text=None, request_id="r3", try_anew=True), 1)) == [
            "TEXT_READER_FAILED",
            "decided",
            "QUARANTINED",
        ]


async def test_picture_that_is_merely_unreadable_is_decoded_on_every_request(town):
    async with town.server() as runner:
        town.pictures.errors[ASK.image] = BadPicture("no", reason="PICTURE_UNREADABLE")
        reasons = [(await refusal(runner, ASK)).reason for _ in range(3)]
        assert reasons == ["PICTURE_UNREADABLE"] * 3 and town.pictures.decoded == 3


async def test_picture_that_killed_the_text_reader_is_tried_only_with_its_text_sent(town):
    async with town.server() as runner:
        town.reader.result = Unavailable("no", reason="TEXT_READER_FAILED")
        with pytest.raises(TrialAborted):
            await runner.answer(replace(ASK, text=None))
        assert town.reader.calls == 1
        for ask in (replace(ASK, text=None), other(text=None)):
            error = await refusal(runner, ask)
            assert error.reason == "QUARANTINED" and "Send the text" in error.message
        assert town.reader.calls == 1
        assert (await runner.answer(other(request_id="r3"))).record.state is TrialState.DECIDED


async def test_killing_the_text_reader_before_a_trial_quarantines_a_picture_too(town):
    """A near-duplicate search reads the text before the trial."""
    async with town.server() as runner:
        runner._known._near = object()
        town.reader.result = Unavailable("no", reason="TEXT_READER_FAILED")
        outcomes = []
        for number in range(2):
            with pytest.raises((BadPicture, Unavailable)) as caught:
                await runner.answer(replace(ASK, text=None, request_id=f"r{number}"))
            outcomes.append(caught.value.reason)
        assert outcomes == ["TEXT_READER_FAILED", "QUARANTINED"] and town.reader.calls == 1


# Trials that kill the model server (RE-6).


def broken_off(times=1):
    error = Unavailable("broke off", reason="MODEL_GONE")
    error.broke_off = times
    return error


class CrashingServer:
    """A model server that crashes on every request and is restarted each time."""

    def __init__(self):
        self.kills = 0

    def __call__(self, request):
        self.kills += 1
        return broken_off()


async def outcomes_of(runner, ask, times):
    outcomes = []
    for _ in range(times):
        try:
            await runner.answer(ask)
            outcomes.append("decided")
        except (BadPicture, TrialAborted, Unavailable) as error:
            outcomes.append(error.reason)
    return outcomes


async def test_request_kills_the_model_server_at_most_twice_even_after_a_restart(town):
    servers = [CrashingServer() for _ in range(20)]
    asks = [replace(FULL, image=b"killer %d|file" % number, request_id=f"k{number}") for number in range(20)]

    def crash_by_number(request):
        number = int(frames_of(request)[0].png.partition(b"killer ")[2].partition(b"|")[0])
        return servers[number](request)

    courts = {"role_models": Cast(rounds=2, describe=crash_by_number).role_models}
    async with town.server(**courts) as runner:
        assert [await outcomes_of(runner, ask, 1) for ask in asks] == [["MODEL_GONE"]] * 20
    async with town.server(**courts) as runner:
        assert [await outcomes_of(runner, ask, 2) for ask in asks] == [["MODEL_GONE", "QUARANTINED"]] * 20
    async with town.server(**courts) as runner:
        others = [replace(ask, namespace="them", text="other text") for ask in asks]
        assert [await outcomes_of(runner, ask, 1) for ask in others] == [["QUARANTINED"]] * 20
        assert await runner.trial_of(RequestName("them", "k0")) is None
        # A procedure without a model treats the picture like any other.
        summaries = [replace(ask, procedure=Procedure.SUMMARY, request_id="s" + ask.request_id) for ask in others]
        assert [await outcomes_of(runner, ask, 1) for ask in summaries] == [["decided"]] * 20
        # A trial without a model is no evidence that the picture is safe for one.
        assert [await outcomes_of(runner, ask, 1) for ask in others] == [["QUARANTINED"]] * 20
    assert [server.kills for server in servers] == [2] * 20


async def test_one_trial_that_killed_two_servers_is_enough_for_quarantine(town):
    async with town.server(role_models=Cast(rounds=2, describe=lambda request: broken_off(2)).role_models) as runner:
        assert await outcomes_of(runner, FULL, 2) == ["MODEL_GONE", "QUARANTINED"]


async def test_unavailable_model_server_quarantines_nothing(town):
    away = Cast(rounds=2, describe=lambda request: Unavailable("away", reason="MODEL_GONE"))
    async with town.server(role_models=away.role_models) as runner:
        assert await outcomes_of(runner, FULL, 5) == ["MODEL_GONE"] * 5


class CrashingSharedServer:
    """A model server that crashes when the killer is shown to it, and breaks off every call in progress."""

    name = "crowded"

    def __init__(self, model, crowd):
        self.model = model
        self.crowd = crowd
        self.full = asyncio.Event()
        self.died = asyncio.Event()
        self.in_progress = Counter()
        self.deaths = 0
        self.most_since = 0

    async def reply(self, request, *, within_s):
        picture = frames_of(request)[0].png
        self.in_progress[picture] += 1
        if len(self.in_progress) == self.crowd:
            self.full.set()
        try:
            if not self.died.is_set():  # the first crash waits until all calls are in progress
                await self.full.wait()
                await asyncio.sleep(0)
                self.deaths += b"killer" in picture
                self.died.set()
                raise broken_off()
            self.most_since = max(self.most_since, len(self.in_progress))
            if b"killer" in picture:
                self.deaths += 1
                raise broken_off()
            return await self.model.reply(request, within_s=within_s)
        finally:
            self.in_progress[picture] -= 1
            self.in_progress += Counter()

    async def odds(self, request, options, *, within_s):
        return None


async def test_bystanders_of_a_server_crash_are_cleared_one_at_a_time(town):
    cast = Cast(rounds=2)
    server = CrashingSharedServer(cast.models["proposer"], crowd=10)
    role_models = replace(cast.role_models, proposer=RoleModel(server))
    asks = [replace(FULL, image=b"%d|file" % number, request_id=f"i{number}") for number in range(9)]
    asks.append(replace(FULL, image=b"killer|file", request_id="killer"))
    async with town.server(role_models=role_models) as runner:
        first = await asyncio.gather(*(outcomes_of(runner, ask, 1) for ask in asks))
        assert first == [["MODEL_GONE"]] * 10 and server.deaths == 1
        retried = await asyncio.gather(*(outcomes_of(runner, ask, 2) for ask in asks))
    assert retried == [["decided"] * 2] * 9 + [["MODEL_GONE", "QUARANTINED"]]
    assert server.deaths == 2 and server.most_since == 1, "one suspect at a time"


async def test_waiting_suspects_take_no_turns_and_leave_with_their_callers(town, monkeypatch):
    monkeypatch.setattr("serving.judging.request._TO_END_S", 0.25)  # waiting suspects have no end to record
    gate, alone = asyncio.Event(), asyncio.Event()
    died = set()

    class Proposer:
        name = "proposer"

        async def reply(self, request, *, within_s):
            picture = frames_of(request)[0].png
            if b"suspect" in picture:
                if picture not in died:
                    died.add(picture)
                    raise broken_off()
                alone.set()
                await gate.wait()
            return await cast.models["proposer"].reply(request, within_s=within_s)

        async def odds(self, request, options, *, within_s):
            return None

    cast = Cast(rounds=2)
    asks = [replace(FULL, image=b"suspect %d|file" % n, request_id=f"s{n}") for n in range(6)]
    async with town.server(role_models=replace(cast.role_models, proposer=RoleModel(Proposer()))) as runner:
        assert [await outcomes_of(runner, ask, 1) for ask in asks] == [["MODEL_GONE"]] * 6
        turns = Turns(2)
        suspects = [asyncio.ensure_future(call_through(turns, runner.answer(ask))) for ask in asks]
        await alone.wait()
        innocent = await asyncio.wait_for(call_through(turns, runner.answer(other(request_id="i"))), 60)
        hurried = await asyncio.gather(
            *(
                call_through(turns, runner.answer(replace(asks[0], request_id=f"h{n}", text=f"{n}"), within_s=0.2))
                for n in "ab"
            ),
            return_exceptions=True,
        )
        for suspect in suspects[:3]:
            suspect.cancel()
        await asyncio.wait(suspects[:3])
        gate.set()
        decided = await asyncio.wait_for(asyncio.gather(*suspects[3:]), 60)
        await wait_until_idle(runner)
        assert turns.all_free
    assert innocent.record.state is TrialState.DECIDED
    assert [error.reason for error in hurried] == ["DEADLINE"] * 2
    assert all(answer.record.state is TrialState.DECIDED for answer in decided)


async def test_verdict_clears_a_picture_of_earlier_deaths(town):
    lines = iter([CrashingServer(), None, CrashingServer(), None])

    def crash_by_turns(request):
        line = next(lines)
        return line and line(request)

    role_models = Cast(rounds=2, describe=crash_by_turns).role_models
    async with town.server(role_models=role_models) as runner:
        outcomes = []
        for number in range(2):
            ask = replace(FULL, request_id=f"r{number}", try_anew=True)
            outcomes += await outcomes_of(runner, ask, 2)
        assert outcomes == ["MODEL_GONE", "decided"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("end", ["the caller leaves", "a call has no time left", "the trial has no time left"])
async def test_server_death_counts_however_the_interrupted_trial_ends(town, end):
    """The server dies and its replacement hangs, so no later call reports the death."""
    async with court_and_server() as (model, server):
        server.faults.script(["reset", "hang"] * 4)
        cast = Cast(rounds=2)
        settings = TrialSettings(call_s=1.0 if end.startswith("a call") else 120.0)
        role_models = replace(cast.role_models, proposer=RoleModel(model))
        async with town.server(role_models=role_models, settings=settings) as runner:
            for number in range(2):
                ask = replace(FULL, request_id=f"r{number}")
                within_s = 2.0 if end.startswith("the trial") else None
                request = asyncio.ensure_future(runner.answer(ask, within_s=within_s))
                await wait_for_stats(server, calls=2 * (number + 1), within_s=60)
                if end == "the caller leaves":
                    request.cancel()
                await asyncio.wait([request])
                assert request.cancelled() or isinstance(request.exception(), TrialAborted | Unavailable)
                await wait_until_idle(runner)
            outcome = await outcomes_of(runner, replace(FULL, request_id="r2"), 1)
            records = [
                await runner.executor.docket.trials.record(trial_id)
                for trial_id in await trials_in(runner.executor.docket)
            ]
            assert (outcome, [record.last(TrialFailed).broke_off for record in records], server.stats.calls) == (
                ["QUARANTINED"],
                [1, 1],
                4,
            )


async def test_one_server_death_during_several_trials_of_a_picture_counts_once(town):
    """Otherwise one death would quarantine a picture that many callers send at once."""
    cast, requests, died = Cast(rounds=2), [], asyncio.Event()

    class Proposer:
        name = "proposer"

        async def reply(self, request, *, within_s):
            if not died.is_set():
                requests.append(request)
                if len(requests) == 3:
                    died.set()
                await died.wait()
                raise broken_off()
            return await cast.models["proposer"].reply(request, within_s=within_s)

        async def odds(self, request, options, *, within_s):
            return None

    async with town.server(role_models=replace(cast.role_models, proposer=RoleModel(Proposer()))) as runner:
        asks = [replace(FULL, namespace=name) for name in ("forum", "blog", "shop")]
        first = await asyncio.gather(*(outcomes_of(runner, ask, 1) for ask in asks))
        second = await asyncio.gather(*(outcomes_of(runner, ask, 1) for ask in asks))
    assert (first, second) == ([["MODEL_GONE"]] * 3, [["decided"]] * 3)


async def test_one_server_death_during_calls_of_both_sides_counts_once(town):
    """Both sides have a call in progress when the server dies."""
    async with court_and_server() as (model, server):
        cast = Cast(rounds=2)
        speaking = asyncio.Barrier(2)

        class Advocate:
            name = "advocate"
            first = True

            async def reply(self, request, *, within_s):
                if self.first:  # later calls of the sides need not be simultaneous
                    self.first = False
                    async with asyncio.timeout(60):
                        await speaking.wait()
                return await model.reply(request, within_s=within_s)

            async def odds(self, request, options, *, within_s):
                return None

        role_models = replace(cast.role_models, accuser=RoleModel(Advocate()), defender=RoleModel(Advocate()))
        async with town.server(role_models=role_models) as runner:
            server.faults.script(["cut", "cut"])
            first = await outcomes_of(runner, FULL, 1)
            (trial_id,) = await trials_in(runner.executor.docket)
            record = await runner.executor.docket.trials.record(trial_id)
            next_outcomes = await outcomes_of(runner, replace(FULL, request_id="r2"), 1)
            broke_off = record.last(TrialFailed).broke_off
    assert (first, broke_off) == (["MODEL_GONE"], 1) and next_outcomes != ["QUARANTINED"]


async def test_erasing_its_failed_trials_releases_a_picture_from_quarantine(town):
    servers = [CrashingServer()]

    def crash_until_mended(request):
        return servers[-1](request) if servers else None

    async with town.server(role_models=Cast(rounds=2, describe=crash_until_mended).role_models) as runner:
        assert await outcomes_of(runner, FULL, 3) == ["MODEL_GONE", "MODEL_GONE", "QUARANTINED"]
        servers.clear()  # the model server was fixed
        anew = replace(FULL, request_id="again")
        assert await outcomes_of(runner, anew, 1) == ["QUARANTINED"]
        docket = runner.executor.docket
        for trial_id in await trials_in(docket):
            await docket.eraser.erase(
                trial_id, who="Ruth", why="the model server was mended", at=runner.executor.court.now()
            )
        assert await outcomes_of(runner, anew, 1) == ["decided"]


# Which failures count as a server death.


@pytest.mark.parametrize(
    ("script", "deaths"),
    [
        (["reset", "reset"], 2),
        (["reset", "500"], 1),
        (["cut"], 1),
        (["500", "500"], 0),
        (["502", "504"], 0),
        (["503"] * 4, 0),
        (["429", "reset", "reset"], 1),
        (["wrong_shape"], 0),
    ],
)
def test_connections_broken_after_the_request_was_sent_count_as_deaths(script, deaths):
    error, _ = failing(script)
    assert getattr(error, "broke_off", 0) == deaths


async def failed_call(port):
    model = ChatCompletions(base_url=f"http://127.0.0.1:{port}/v1", model="m", pause_s=0.01, pause_max_s=0.02)
    try:
        await model.reply(HELLO, within_s=60)
    except Unavailable as error:
        return error
    finally:
        await model.aclose()
    raise AssertionError("the call was answered")


async def test_server_gone_after_a_500_has_died_but_an_absent_one_has_not():
    async def dying(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        server.close()
        writer.write(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(dying, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    died = await failed_call(port)
    never = await failed_call(port)
    assert (died.reason, died.broke_off) == ("MODEL_GONE", 1)
    assert (never.reason, never.broke_off) == ("MODEL_GONE", 0)


async def test_record_of_a_failed_trial_counts_the_broken_connection(town):
    async with town.server(role_models=Cast(rounds=2, describe=CrashingServer()).role_models) as runner:
        await outcomes_of(runner, FULL, 1)
        (trial_id,) = await trials_in(runner.executor.docket)
        record = await runner.executor.docket.trials.record(trial_id)
    assert record.last(TrialFailed).broke_off == 1
