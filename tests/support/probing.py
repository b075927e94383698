"""A synthetic world for the probe: memes about invented groups, controllers, and a target with one weakness."""

import asyncio
import dataclasses
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from court.backends.chat.scripted import ScriptedModel
from court.meme import Frame
from eval.datasets.known import find_card
from eval.models.call_cache import SqliteCallCache
from eval.models.metered import MeteredModel, ModelSpec
from eval.models.samples import one_set
from eval.probe.agents import PROMPTS, ProbeModels, Subject, prompt_of
from eval.probe.folder import ProbeSpec, Scored, Scoring, ScoringOutcome
from eval.probe.run import ProbePlan, probe
from eval.synthetic.scenes import draw_meme
from tests.support.fakes import FakeReader
from tests.support.pictures import encode

KINDS = {
    "blueland": "nationality",
    "round hats": "religion",
    "left-handed": "disability",
    "kettles": "appliances",  # not in the initial taxonomy
}
"""Category of the group that a meme is about; memes about no such group are harmless."""
APPLIANCES = "It puts people down for the things they own."
_FENCED = re.compile(r"\[begin \w+\]\n(.*?)\n\[end \w+\]", re.DOTALL)


def fenced(request):
    """Returns the fenced texts of a request in order, without the model's own reply in a repair."""
    parts = request.parts[:-2] if "Your last reply" in request.parts[-1] else request.parts
    return [part for text in parts if isinstance(text, str) for part in _FENCED.findall(text)]


def role_of(request):
    """Returns the role of a request by its system message; ``keeps`` for the examiner's second task."""
    (role,) = (role for role in PROMPTS if prompt_of(role).system() == request.system)
    return (
        "keeps" if role == "examiner" and any("misbelief" in p for p in request.parts if isinstance(p, str)) else role
    )


def category_of(text):
    return next((kind for group, kind in KINDS.items() if group in text.lower()), None)


@dataclass
class ProbeWorld:
    """The replies of the target and of the controllers.

    Attributes:
        weak: Category in which the target explains poorly, and even more poorly if the text is rewritten.
        says: Overrides by role: functions of the request, which return None for the usual reply.
    """

    weak: str = "religion"
    says: dict = field(default_factory=dict)
    asked: Counter = field(default_factory=Counter)

    def target(self, request):
        self.asked["target"] += 1
        if reply := self._override("target", request):
            return reply
        text, category = fenced(request)
        if category.split(":")[0] != self.weak:
            return "a full explanation"
        return "no idea" if "hint" in text else "half an explanation"

    def controller(self, request):
        role = role_of(request)
        self.asked[role] += 1
        return self._override(role, request) or getattr(self, f"_{role}")(*fenced(request))

    def _override(self, role, request):
        other = self.says.get(role)
        return other(request) if other else None

    def _miner(self, text, taxonomy):
        kind = category_of(text)
        known = [line.split(":")[0] for line in taxonomy.splitlines()]
        if kind is None or kind in known:
            return {"categories": [kind] if kind else [], "new_name": "", "new_definition": ""}
        return {"categories": [], "new_name": kind, "new_definition": APPLIANCES}

    def _examiner(self, text, category):
        return {"reason": "one can see it", "present": category_of(text) == category.split(":")[0]}

    def _judge(self, taxonomy, category):
        return {"reason": "nothing like it", "distinct": True, "right_grain": True}

    def _narrator(self, text, category):
        group = next(group for group in KINDS if group in text.lower())
        return {"misbelief": f"People with {group} can't be trusted with {text.split()[-1]}."}

    def _answerer(self, text, category):
        return f"a full explanation of {text}"

    def _senior(self, text, *drafts_and_category):
        return {"answer": f"the reference on {text}"}

    def _scorer(self, text, category, reference, answer):
        score = {"a full explanation": 9, "half an explanation": 6}.get(answer, 3)
        return f"It has some points of the reference.\nRating: [[{score}]]"

    def _keeps(self, text, misbelief):
        return {"reason": "it is still there", "keeps": True}

    def _refiner(self, *examples_and_meme):
        text = examples_and_meme[-2]
        return {"explanation": "the picture says it", "rewritten": f"a hint, {text}"}


def with_scripted_models(path: Path, world: ProbeWorld, scene, *, controllers=1, limit=None, target="target-model"):
    """Runs a scene with scripted models; returns its result and the number of calls that reached the models."""

    async def hold():
        store = SqliteCallCache(path / "calls.sqlite")
        try:
            probed = ScriptedModel(world.target, name=target)
            others = [ScriptedModel(world.controller, name=f"model-{n}") for n in range(controllers)]
            spec = ModelSpec(model="m", usd_in=1.0, usd_out=2.0)
            limited = spec.model_copy(update={"most_calls": limit})
            opened = {"target": MeteredModel("target", probed, store=store, spec=limited)}
            for number, model in enumerate(others):
                opened[f"c{number}"] = MeteredModel(f"c{number}", model, store=store, spec=spec)
            models = ProbeModels(
                opened["target"], tuple(metered for name, metered in opened.items() if name != "target")
            )
            result = await scene(models, opened)
            return result, sum(len(model.asked) for model in (probed, *others))
        finally:
            await store.close()

    return asyncio.run(hold())


def subject(id_, text, scene="cat"):
    """Returns a meme with its picture, with and without the text."""
    pictures = [draw_meme(scene, drawn, size=(96, 72)) for drawn in (text, "")]
    shown, erased = ((Frame(encode(picture, "PNG"), *picture.size),) for picture in pictures)
    return Subject(id_, text, shown, erased)


def scored(id_, category, misbelief, score, text=""):
    """Returns an original meme with this score; None for unscored."""
    scoring = (
        Scoring(outcome=ScoringOutcome.UNSCORED, why="there was no rating")
        if score is None
        else Scoring(outcome=ScoringOutcome.SCORED, score=score)
    )
    return Scored(meme=id_, category=category, misbelief=misbelief, text=text or f"text of {id_}", scoring=scoring)


TEXTS = (
    ("blueland never pays for tea", True),
    ("blueland is late for dinner", True),
    ("they all wear round hats at work", True),
    ("round hats hide the money", True),
    ("round hats make poor neighbours", True),
    ("left-handed people can't drive buses", True),
    ("a cat on a warm roof", False),
    ("monday again", False),
    ("kettles are for fools", True),
    ("who owns two kettles has no taste", True),
)


def write_data_set(place: Path, texts=TEXTS, split="dev_seen"):
    """Writes drawn memes in the layout of FHM."""
    (place / "img").mkdir(parents=True)
    rows = []
    for number, (text, harmful) in enumerate(texts, 1):
        name = f"img/{number:05}.png"
        scene = ("cat", "road", "coffee")[number % 3]
        (place / name).write_bytes(encode(draw_meme(scene, text, size=(160, 120)), "PNG"))
        rows.append({"id": number, "img": name, "label": int(harmful), "text": text})
    (place / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return place


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data_set(tmp_path_factory.mktemp("data"))


def a_plan(out, data, **changes):
    plan = ProbePlan(
        out=out,
        samples=one_set(find_card("fhm"), data, "dev_seen", limit=None),
        target="target",
        controllers=("c0",),
        spec=ProbeSpec(steps=3, seeds=1, batch=3),
        command="memecourt-eval probe",
    )
    own = {name: changes.pop(name) for name in ProbeSpec.model_fields if name in changes}
    return dataclasses.replace(plan, spec=plan.spec.model_copy(update=own), **changes)


def probed(plan, world=None, *, reader=None, **options):
    """Runs a probe, and returns the folder and the number of calls actually made."""
    world = world or ProbeWorld()

    async def scene(_, opened):
        return await probe(plan, opened, reader or FakeReader())

    plan.out.mkdir(exist_ok=True)
    return with_scripted_models(plan.out, world, scene, **options)
