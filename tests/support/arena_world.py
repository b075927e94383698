"""An arena of scripted models whose strengths are known.

Each answer states its quality (``quality=…``) and its author (``voice=…``). A judge reads these and favours the better
answer with the probability of the Bradley-Terry model; it has no other information.
"""

import asyncio
import math
import random
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from court.backends.chat.scripted import ScriptedModel
from court.errors import Unavailable
from court.meme import Frame
from eval.arena.events import Judged, ReplyCost
from eval.arena.folder import ArenaFolder, ArenaManifest, MemeEntry, ModelEntry
from eval.arena.procedure import ArenaPlan, ask_remaining, run_memes
from eval.arena.run import Ask, run
from eval.arena.settings import ArenaSettings
from eval.arena.words import Setting
from eval.cli import cli
from eval.datasets.known import find_card
from eval.models.call_cache import CallCache, SqliteCallCache
from eval.models.metered import MeteredModel, ModelSpec
from eval.models.samples import ShownMeme, one_set
from eval.synthetic.make import Layout, make

STRENGTHS = {"ash": 1.6, "beech": 0.8, "cedar": 0.0, "elm": -0.8, "fir": -1.6}
DIMENSIONS = ("instruction_following", "correctness", "redundancy", "relevance", "accuracy", "overall")


def arena_meme(number: int) -> ShownMeme:
    return ShownMeme(
        id=f"m{number}",
        text=f"tea with the people from Blueland, number {number}",
        frames=(Frame(f"png {number}".encode(), 8, 8),),
        pixels_sha256=f"{number:064x}",
        harmful=bool(number % 2),
        source_label="harmful" if number % 2 else "not harmful",
    )


def rng_of(*names) -> random.Random:
    return random.Random("\0".join(map(str, names)))


class ArenaModel:
    """The replies of one scripted model to all prompts of the arena."""

    def __init__(self, name, strengths, *, favours=0.0, levels=3, refuses=(), says=None):
        self.name, self.strengths = name, strengths
        self.favours, self.levels, self.refuses = favours, levels, refuses
        self.says = says or (lambda request, usual: usual)

    def __call__(self, request):
        return self.says(request, self._usual(request))

    def _usual(self, request):
        words = "\n".join(part for part in request.parts if isinstance(part, str))
        properties = set(request.reply_schema["properties"])
        meme = re.search(r"number (\d+)", words)[1]
        if "high" in properties:
            return {
                kind: f"A person of {kind} background, made up for {meme}."
                for kind in ("high", "moderate", "unrelated")
            }
        if properties == {"question"}:
            kind = re.search(r"person of (\w+) background", words)[1]
            return {"question": f"What could harm whom here, asks one of {kind} background?"}
        if properties == {"answer"}:
            return {"answer": f"Round {words.count('Asked before') + 1}. {self._quality(meme)}"}
        if "why" in properties:
            return self._judged(request, words)
        if "Another text" in words:
            return {"background_knowledge": f"merged by {self.name}", "reasoning": "merged " * 5}
        if meme in self.refuses:
            return "I would rather not."
        lists = "\n- " + "\n- ".join("point" for _ in range(rng_of(self.name, meme).randrange(3)))
        return {"background_knowledge": "It is about tea.", "reasoning": f"{self._quality(meme)}{lists}"}

    def _quality(self, meme):
        quality = self.strengths[self.name] + rng_of("quality", self.name, meme).gauss(0, 0.5)
        return f"quality={quality:.4f} voice={self.name}"

    def _judged(self, request, words):
        found = re.findall(r"quality=(-?[\d.]+) voice=([^\n]+)", words.split("Answer A.")[1])
        (a, voice_a), (b, voice_b) = found[0], found[-1]
        # The random draw depends on the answers alone, not on the wording of the judge's prompt.
        shown = words.split("Compare A and B")[0]
        reply = {"why": f"{self.name} compared them"}
        if "answer" in request.reply_schema["properties"]:
            reply["answer"] = f"{self.name} answers first"
        for dimension in set(request.reply_schema["properties"]) - {"why", "answer"}:
            edge = float(a) - float(b) + self.favours * ((voice_a == self.name) - (voice_b == self.name))
            draw = rng_of(self.name, dimension, shown).random()
            chance = 1 / (1 + math.exp(-edge))
            reply[dimension] = (
                ("A" if draw < chance else "B") if abs(draw - chance) > 0.1 * min(chance, 1 - chance) else "both good"
            )
            if self.levels == 5:
                reply[dimension] = {"A": "A>>B" if edge > 1 else "A>B", "B": "B>>A" if edge < -1 else "B>A"}.get(
                    reply[dimension], "A=B"
                )
        return reply


class MemoryCallCache(CallCache):
    """An in-memory store of calls, with a fixed key for fence marks."""

    def __init__(self):
        super().__init__(b"0" * 32)
        self.kept = {}

    async def read(self, key):
        return self.kept.get(key)

    async def keep(self, key, model, body):
        self.kept.setdefault(key, body)


def priced(name, most_calls=None):
    """Returns the entry of a scripted model, with a price."""
    return ModelSpec(model=name, usd_in=1.0, usd_out=2.0, most_calls=most_calls)


class Arena:
    """Runs an arena in a folder, repeatedly if needed."""

    def __init__(
        self, root: Path, *, memes=12, strengths=STRENGTHS, voices=None, seed=0, plan=None, limits=None, **settings
    ):
        self.root, self.seed = root, seed
        self.strengths = dict(strengths)
        self.settings = ArenaSettings.model_validate(
            {
                "targets": list(strengths),
                "judges": list(strengths)[:3],
                "controller": next(iter(strengths)),
                "resamples": 100,
                **settings,
            }
        )
        self.memes = tuple(arena_meme(number) for number in range(memes))
        self.voices = {name: ArenaModel(name, self.strengths, levels=self.settings.levels) for name in strengths} | (
            voices or {}
        )
        self.models: dict[str, ScriptedModel] = {}
        self.limits = limits or {}
        self.plan = plan or {}
        self.folder = ArenaFolder(root)
        self.store = MemoryCallCache()

    def manifest(self) -> ArenaManifest:
        return ArenaManifest(
            name="test",
            created=datetime(2026, 1, 2, tzinfo=UTC),
            dataset="synthetic-harmeme",
            split="test",
            data={},
            limit=None,
            seed=self.seed,
            settings=self.settings,
            models={name: ModelEntry(model=name, family=name[0], usd_in=1.0, usd_out=2.0) for name in self.strengths},
            memes=tuple(
                MemeEntry(id=m.id, harmful=m.harmful, source_label=m.source_label, pixels_sha256=m.pixels_sha256)
                for m in self.memes
            ),
            prompts={},
            software="test",
            python="test",
            machine="test",
            command="test",
        )

    @property
    def calls_made(self) -> int:
        """Number of calls that reached the models in the last session."""
        return sum(len(model.asked) for model in self.models.values())

    async def go(self, delay_s=0.0) -> None:
        """Runs what is missing; every call takes ``delay_s`` seconds."""
        self.models = {name: ScriptedModel(voice, name=name, delay_s=delay_s) for name, voice in self.voices.items()}
        models = {
            name: MeteredModel(name, model, store=self.store, spec=priced(name, self.limits.get(name)))
            for name, model in self.models.items()
        }
        await run_memes(ArenaPlan(self.settings, self.memes, models, self.seed, **self.plan), self.folder)

    def hold(self) -> Path:
        self.root.mkdir(parents=True, exist_ok=True)
        self.folder.write_manifest(self.manifest())
        asyncio.run(self.go())
        return self.root


def ask_after(arena, questions, replies, memes=None):
    """Asks questions after an arena; returns the scripted models, by name as their ``replies``."""
    models, store = {name: ScriptedModel(reply, name=name) for name, reply in replies.items()}, MemoryCallCache()
    opened = {name: MeteredModel(name, model, store=store) for name, model in models.items()}
    known = {meme.id: meme for meme in (arena.memes if memes is None else memes)}
    asyncio.run(ask_remaining(arena.folder, questions, known, opened))
    return models


def output_of(*words, code=0) -> str:
    """Returns what a command of memecourt-eval prints, which has to end with this code."""
    ran = CliRunner().invoke(cli, [str(word) for word in words])
    assert ran.exit_code == code, ran.output
    return ran.output


def fails_after(calls: int):
    """Returns a ``says`` function that replies as usual to that many calls, then raises Unavailable."""
    left = [calls]

    def says(_, usual):
        left[0] -= 1
        return usual if left[0] >= 0 else Unavailable("The model server is gone.")

    return says


CALL = ReplyCost(model="j", served="j", prompt="p", digest="d", calls=1, tokens_in=1, tokens_out=1, latency_s=0.1)


def judged(meme, a, b, judge, verdict, *, study="arena", setting=Setting.FUSED, task=0):
    return Judged(
        meme=meme,
        task=task,
        a=a,
        b=b,
        judge=judge,
        setting=setting,
        study=study,
        verdicts=dict.fromkeys(DIMENSIONS, verdict),
        why="because",
        call=CALL,
    )


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


def ask_on_disk(out, samples, **changes) -> Ask:
    settings = ArenaSettings(targets=tuple(THREE), judges=("ash", "beech"), controller="ash", resamples=100)
    specs = {name: ModelSpec(url=("http://127.0.0.1:9/v1",), model=name) for name in THREE}
    return Ask(**{"out": out, "name": "made", "settings": settings, "specs": specs, "samples": samples, **changes})


def run_on_disk(ask: Ask) -> int:
    """Runs an arena as the command does, on scripted models; returns the number of calls that reached them."""

    async def go():
        store = SqliteCallCache(ask.calls or ask.out.parent / "store.sqlite")
        scripted = {name: ScriptedModel(numbered(ArenaModel(name, THREE)), name=name) for name in THREE}
        models = {name: MeteredModel(name, model, store=store, run_seed=ask.seed) for name, model in scripted.items()}
        try:
            await run(ask, lambda _: None, models=models)
        finally:
            await store.close()
        return sum(len(model.asked) for model in scripted.values())

    return asyncio.run(go())


def on_disk(out, data, **changes) -> int:
    whole = one_set(find_card("synthetic-harmeme"), data, "test", limit=None)
    return run_on_disk(ask_on_disk(out, **{"samples": whole, **changes}))
