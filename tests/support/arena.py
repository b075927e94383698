"""Helpers of tests of arena."""

import asyncio
import re

import pytest

from court.backends.chat.scripted import ScriptedModel
from eval.arena.run import Ask, run
from eval.arena.settings import ArenaSettings
from eval.datasets.known import find_card
from eval.models.call_cache import SqliteCallCache
from eval.models.metered import MeteredModel
from eval.models.open import ModelSpec
from eval.models.samples import one_set
from eval.synthetic.make import Layout, make
from tests.support.arena_world import ArenaModel

THREE = {"ash": 1.0, "beech": 0.0, "cedar": -1.0}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("data") / "made"
    make(root, Layout.HARMEME, train=4, val=0, test=4)
    return root


def numbered(voice):
    """Numbers memes by their text: scripted models recognise them by a number, which memes of synthetic sets lack."""

    def says(request):
        words = "\n".join(part for part in request.parts if isinstance(part, str))
        number = sum(map(ord, re.search(r"Its text:\n\[begin \w+\]\n(.*?)\n\[end", words, re.DOTALL)[1]))
        parts = tuple(f"number {number}\n{part}" if n == 1 else part for n, part in enumerate(request.parts))
        return voice(
            type(request)(request.system, parts, request.reply_schema, request.max_tokens, request.temperature)
        )

    return says


def on_disk(out, data, strengths=THREE, **changes):
    settings = ArenaSettings(targets=tuple(strengths), judges=("ash", "beech"), controller="ash", resamples=200)
    spec = {name: ModelSpec(url=("http://127.0.0.1:9/v1",), model=name) for name in strengths}
    arguments = {"out": out, "name": "made", "settings": settings, "specs": spec}
    ask = Ask(**{**arguments, "samples": one_set(find_card("synthetic-harmeme"), data, "test", limit=None), **changes})

    async def go():
        store = SqliteCallCache.open(out.parent / "store.sqlite")
        models = {
            name: MeteredModel(name, ScriptedModel(numbered(ArenaModel(name, strengths)), name=name), store=store)
            for name in strengths
        }
        messages = []
        try:
            await run(ask, messages.append, models=models)
        finally:
            await store.close()
        return messages

    return asyncio.run(go())
