"""Sessions that tests kill: each works in a folder until it is done, and notes its model calls."""

import asyncio
from contextlib import AsyncExitStack

from court.backends.chat.scripted import ScriptedModel
from eval.arena.detection import difficulty_questions, label_questions
from eval.arena.losses import loss_questions, losses_of
from eval.arena.procedure import ask_remaining
from eval.datasets.known import find_card
from eval.models.call_cache import SqliteCallCache
from eval.models.metered import MeteredModel
from eval.models.samples import one_set
from eval.probe.folder import ProbeSpec
from eval.probe.run import ProbePlan, probe
from eval.solvers.witness import Arm
from eval.witness.run import WitnessPlan, run_witness
from eval.witness.world import draw_world, open_drawn
from tests.support.arena_world import Arena, ArenaModel
from tests.support.fakes import FakeReader
from tests.support.probing import ProbeWorld, write_data_set

CONCURRENCY = 2
DELAY_S = 0.02
TARGETS = {"ash": 1.0, "beech": 0.0, "cedar": -1.0}


class Slow:
    """A chat model that notes each call before it answers after a while."""

    def __init__(self, inner, on_call):
        self.inner, self.on_call, self.name = inner, on_call, inner.name

    async def reply(self, request, *, within_s):
        self.on_call()
        await asyncio.sleep(DELAY_S)
        return await self.inner.reply(request, within_s=within_s)

    async def odds(self, request, options, *, within_s):
        return await self.inner.odds(request, options, within_s=within_s)


def open_store(root, stack):
    store = SqliteCallCache(root / "calls.sqlite")
    stack.push_async_callback(store.close)
    return store


def metered(name, reply, store, on_call):
    return MeteredModel(name, Slow(ScriptedModel(reply, name=name), on_call), store=store)


async def run_probe(root, on_call):
    async with AsyncExitStack() as stack:
        store, world = open_store(root, stack), ProbeWorld()
        if not (root / "data").exists():
            write_data_set(root / "data")
        plan = ProbePlan(
            root / "out",
            one_set(find_card("fhm"), root / "data", "dev_seen", limit=None),
            "target",
            ("senior",),
            spec=ProbeSpec(steps=2, seeds=1),
            concurrency=CONCURRENCY,
        )
        voices = {"target": world.target, "senior": world.controller}
        models = {name: metered(name, voice, store, on_call) for name, voice in voices.items()}
        await probe(plan, models, FakeReader())


async def run_the_witness(root, on_call):
    async with AsyncExitStack() as stack:
        store = open_store(root, stack)
        source, reader = open_drawn(stack)
        plan = WitnessPlan(
            out=root / "out",
            claims=tuple(fact.gold for fact in draw_world(0)[:6]),
            arms=(Arm.WITNESS, Arm.CLOSED_BOOK),
            concurrency=CONCURRENCY,
        )
        model = MeteredModel("reader", Slow(reader, on_call), store=store).as_chat_model()
        await run_witness(plan, model=model, source=source, store=store)


async def run_arena(root, on_call):
    def note(_, usual):
        on_call()
        return usual

    voices = {name: ArenaModel(name, TARGETS, says=note) for name in TARGETS}
    options = {"voices": voices, "plan": {"concurrency": CONCURRENCY}}
    arena = Arena(root / "out", memes=4, strengths=TARGETS, judges=["ash", "beech"], **options)
    async with AsyncExitStack() as stack:
        arena.store = open_store(root, stack)
        if not arena.folder.begun:
            arena.folder.write_manifest(arena.manifest())
        await arena.go(delay_s=DELAY_S)


def arena_in(root):
    """Returns a finished arena."""
    arena = Arena(root / "out", memes=6, strengths=TARGETS, judges=["ash", "beech"])
    if not arena.folder.begun:
        arena.hold()
    return arena


async def ask_about(arena, questions, models):
    memes = {meme.id: meme for meme in arena.memes}
    await ask_remaining(arena.folder, questions, memes, models, concurrency=CONCURRENCY)


async def label_memes(root, on_call):
    async with AsyncExitStack() as stack:
        store, arena = open_store(root, stack), arena_of(root)
        models = {name: metered(name, lambda _: {"label": "harmful"}, store, on_call) for name in TARGETS}
        await ask_about(arena, label_questions(arena.manifest()), models)


async def rate_tasks(root, on_call):
    def rating(_):
        return {"why": "it is plain", "text": 2, "image": 3, "reasoning": 4}

    async with AsyncExitStack() as stack:
        store, arena = open_store(root, stack), arena_of(root)
        questions = difficulty_questions(arena.folder.events(), "owl")
        await ask_about(arena, questions, {"owl": metered("owl", rating, store, on_call)})


async def explain(root, on_call):
    def reason(request):
        fields = request.reply_schema["properties"]
        aspect = {"aspect": fields["aspect"]["enum"][0]} if "aspect" in fields else {}
        return {"why": "it overlooks something", "error": fields["error"]["enum"][0], **aspect}

    async with AsyncExitStack() as stack:
        store, arena = open_store(root, stack), arena_of(root)
        events = arena.folder.events()
        losses = losses_of(arena.folder.manifest(), events, most=20, seed=0)
        questions = loss_questions(events, losses, explainer="owl", second="lark", seed=0)
        await ask_about(arena, questions, {name: metered(name, reason, store, on_call) for name in ("owl", "lark")})


def arena_of(root):
    return Arena(root / "out", memes=6, strengths=TARGETS, judges=["ash", "beech"])


SESSIONS = {
    "arena": run_arena,
    "probe": run_probe,
    "witness": run_the_witness,
    "detect": label_memes,
    "difficulty": rate_tasks,
    "explain": explain,
}
AFTER_AN_ARENA = {"detect", "difficulty", "explain"}
