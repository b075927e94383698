"""Rounds of an examination that run ahead of their summaries."""

import asyncio
from functools import partial

import pytest

from court.errors import Unavailable
from court.events import QuestionAsked, Side, SideRested
from court.roles import RoleModel, RoleModels
from court.settings import TrialSettings
from tests.support import cast as casts
from tests.support import virtual_time
from tests.support.cast import Cast, task_of

try_meme = partial(casts.try_meme, run=virtual_time.run)


def tasks_of(cast, role="accuser"):
    return [task_of(request) for request in cast.requests(role)]


def slow_summaries(rounds=4, times_longer=6, **lines):
    """Returns a cast whose summaries take as long as several questions and answers."""
    cast = Cast(rounds=rounds, delay_s=0.005, **lines)
    speak = {role: cast.models[role].reply for role in ("accuser", "defender")}

    def slowly(role):
        async def reply(request, *, within_s):
            if task_of(request) == "summarise":
                await asyncio.sleep(0.005 * times_longer)
            return await speak[role](request, within_s=within_s)

        return reply

    for role in speak:
        object.__setattr__(cast.models[role], "reply", slowly(role))
    return cast


def test_at_most_three_rounds_run_ahead_of_unfinished_summaries():
    cast = slow_summaries(rounds=4, times_longer=20)
    record = try_meme(cast)
    assert {event.rounds for event in record.all(SideRested)} == {4}
    rounds = [event.round for event in record.all(QuestionAsked) if event.side is Side.ACCUSER]
    assert rounds == list(range(1, len(rounds) + 1))
    assert 4 < len(rounds) <= 4 + 3


def test_summaries_are_recorded_in_the_order_of_rounds():
    order = iter([30, 1, 1, 1, 1, 1, 1, 1])
    cast = Cast(rounds=4, delay_s=0.002)
    speak = cast.models["accuser"].reply

    async def reply(request, *, within_s):
        if task_of(request) == "summarise":
            await asyncio.sleep(0.002 * next(order))
        return await speak(request, within_s=within_s)

    object.__setattr__(cast.models["accuser"], "reply", reply)
    record = try_meme(cast)
    summaries = [event for event in record.events if event.kind == "Summarised" and event.side is Side.ACCUSER]
    assert [event.round for event in summaries] == [1, 2, 3, 4]
    plain = try_meme(Cast(rounds=4), settings=TrialSettings(overlap=False))
    expected = [event for event in plain.events if event.kind == "Summarised" and event.side is Side.ACCUSER]
    assert [(e.entropy, e.entropy_change) for e in summaries] == [(e.entropy, e.entropy_change) for e in expected]


class BusyServers:
    """A model whose server has no capacity for another call."""

    urls = ("http://busy",)

    def __init__(self, model):
        self._model = model

    def __getattr__(self, name):
        return getattr(self._model, name)

    def pinned(self, key):
        return self

    def room(self):
        return False


def test_no_rounds_run_ahead_without_spare_capacity():
    cast = slow_summaries()
    role_models = RoleModels(
        **{role: RoleModel(model, servers=BusyServers(model)) for role, model in cast.models.items()}
    )
    try_meme(cast, role_models=role_models)
    assert tasks_of(cast) == ["ask", "summarise"] * 4


def test_only_failures_in_needed_rounds_fail_the_trial():
    def fails_at(number):
        def line(request):
            previous = sum("Question " in part for part in request.parts if isinstance(part, str))
            return Unavailable("gone", reason="MODEL_GONE") if previous + 1 == number else None

        return line

    record = try_meme(slow_summaries(rounds=3, accuser_ask=fails_at(4)))
    assert {event.rounds for event in record.all(SideRested)} == {3}
    with pytest.raises(Exception, match="gone"):
        try_meme(slow_summaries(rounds=3, accuser_ask=fails_at(3)))
