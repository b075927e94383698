"""Demonstrations of the papers: drawn data, stand-ins of known ability, and the figures that follow from both.

No run is read: the verdict of each trial follows from the memes' key and the model's ability
(:func:`eval.synthetic.oracle.expected`). Precedents are labelled by the hidden rule, as all memes are.

In a probe of drawn memes each group of the world stands for a kind of harm. The target explains one kind less well, and
rewritten texts of that kind not at all: the finding that a probe must come to.
"""

import contextlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean as _mean
from typing import Any

from anyio.from_thread import start_blocking_portal

from eval.probe.agents import BEGIN, PROMPTS, prompt_of
from eval.scores.metrics import harm_values
from eval.solvers.witness import Arm
from eval.standin.server import FakeModelServer, serving
from eval.standin.settings import Settings
from eval.synthetic.arena_oracle import ArenaVoice
from eval.synthetic.make import KEY, Layout, make, read_key
from eval.synthetic.messages import fenced, texts_of
from eval.synthetic.oracle import Ability, JudgeInput, Oracle, answer_signs, answer_target, expected
from eval.synthetic.world import GROUPS, SIGNS, SIZE, TARGETS, claim_of, signs_of, target_of
from eval.witness.world import WorldReader, draw_world
from eval.witness.world import expected as expected_finding


@contextlib.contextmanager
def served(servers: Mapping[str, FakeModelServer]) -> Iterator[dict[str, str]]:
    """Runs fake servers on the loopback interface; yields their addresses by name."""
    # A thread with a loop of its own: the command that calls the servers runs its own loop meanwhile.
    with start_blocking_portal() as portal, contextlib.ExitStack() as stack:
        ports = {
            name: stack.enter_context(portal.wrap_async_context_manager(serving(server)))
            for name, server in servers.items()
        }
        yield {name: f"http://127.0.0.1:{port}/v1" for name, port in ports.items()}


def oracle_server(model: str, ability: Ability) -> FakeModelServer:
    """A fake server of a model of this ability."""
    oracle = Oracle(ability)
    settings = Settings(model=model, play="synthetic", capacity=64)
    return FakeModelServer(settings, answer=oracle.answer, odds=oracle.odds)


_PLANTED = Ability(
    harmful=1.0, benign=1.0, groups_told=3, unseen=0.1, lead=2, late=0.8, near=True,
)  # fmt: skip
ABILITIES: Mapping[str, Ability] = {
    "3b": replace(_PLANTED, eyes=0.0, description=0.05, arguments=0.1, answers=0.15, precedents=0.1),
    "7b": replace(_PLANTED, eyes=0.05, description=0.1, arguments=0.2, answers=0.4, precedents=0.15),
    "main": replace(_PLANTED, eyes=0.05, description=0.1, arguments=0.2, answers=0.6, precedents=0.35),
}
"""Abilities of the fake models that stand in for MemeCourt's: what the paper claims is true of them by construction.

A description leaves out half of the badges, which questions bring out; near precedents help; the side that is right
rests sooner; a stance that comes late misleads; a larger model sees more.
"""
_ALTERED: Mapping[str, dict[str, Any]] = {
    "full": {},
    "no-precedents": {},
    "no-advocates": {"advocates": False},
    "no-captioner": {"captioner": False},
    "dull-judge": {"dull": True},
    "post-stance": {"stance_from_start": False},
}
"""Arguments of the expectation, by arm."""


def _court(data: Path) -> Mapping[str, Any]:
    stages: dict[str, tuple[str, str, Sequence[str]]] = {
        f"{model}-harm-c": ("harm-c", model, ["full"]) for model in ("7b", "3b")
    }
    stages |= {f"main-{name}": (name, "main", ["full"]) for name in ("harm-p", "fhm-test-seen")}
    stages["main-harm-c"] = "harm-c", "main", [*_ALTERED]
    planted = {}
    for stage, (name, model, arms) in stages.items():
        fhm = name.startswith("fhm")
        key = read_key(data / ("fhm" if fhm else name))
        # Somewhat harmful memes are left out.
        memes = [meme for meme in key if meme.split == ("test_seen" if fhm else "test") and (fhm or meme.level != 1)]
        rows = []
        for arm in arms:
            # All precedents are labelled by the rule, and those that are found are near: here the meme itself.
            predicted = [
                expected(
                    one.text,
                    one.badge,
                    ABILITIES[model],
                    precedents=() if arm == "no-precedents" else ((one.text, one.badge, one.harmful),),
                    **_ALTERED[arm],
                ).harmful
                for one in memes
            ]
            accuracy, macro_f1 = harm_values([one.harmful for one in memes], predicted)
            rows.append({"arm": arm, "card": {"figures": {"accuracy": accuracy, "macro-f1": macro_f1}}})
        planted[stage] = {"plain" if fhm else "extreme": rows}
    return planted


def draw_benchmarks(data: Path, *, test: int = 56, seed: int = 1, size: tuple[int, int] = SIZE) -> None:
    """Draws three benchmarks in place of the paper's, in a folder each, unless they exist.

    Raises BadRequest: A directory is not empty and has no synthetic benchmark.
    """
    layouts = {"harm-c": Layout.HARMEME, "harm-p": Layout.HARMEME, "fhm": Layout.FHM}
    for number, (name, layout) in enumerate(layouts.items()):
        if not (data / name / KEY).exists():
            # Claims are tested on the first alone.
            judged = test if number == 0 else test // 16 * 4
            # A seed for each: two data sets with the same layout would otherwise have the same memes.
            own = seed + 4 * number
            make(data / name, layout, train=2 * judged, val=0, test=judged, seed=own, near=True, size=size)


KINDS: Mapping[str, str] = dict(zip(GROUPS, (category.name for category in BEGIN), strict=True))
"""Kind of harm by group."""
WEAK = "religion"
REWRITTEN = "To put it mildly, "
FULL, HALF, NONE = 9, 6, 3
"""Scores of a full explanation, half of one, and none."""


def kind_of(text: str) -> str:
    """The kind of harm of a text; empty for a text that says nothing bad."""
    claim = claim_of(text)
    return KINDS[claim.group] if claim is not None and claim.bad else ""


def score_of(text: str, category: str, weak: str) -> int:
    """Score of the explanation that a target with this weakness gives."""
    if category != weak:
        return FULL
    # A third of the weak kind is not understood as it is.
    return NONE if REWRITTEN in text or Ability().chance("explained", text) < 1 / 3 else HALF


def probe_reply(payload: Mapping[str, Any], *, weak: str = "") -> str | None:
    """Replies as any controller of a probe, or a target with this weak kind; None if it is not part of a probe."""
    system, parts = payload["messages"][0]["content"], texts_of(payload)
    role, shown = next((role for role in PROMPTS if prompt_of(role).system() == system), ""), fenced(parts)
    reply: dict[str, Any]
    match role:
        case "miner":
            kind = kind_of(shown[0])
            reply = {"categories": [kind] if kind else [], "new_name": "", "new_definition": ""}
        case "examiner" if any("misbelief" in part for part in parts):
            reply = {"reason": "It is still there.", "keeps": True}
        case "examiner":
            reply = {"reason": "One can see it.", "present": kind_of(shown[0]) == shown[1].split(":")[0]}
        case "judge":
            reply = {"reason": "There is nothing like it.", "distinct": True, "right_grain": True}
        case "narrator":
            reply = {"misbelief": f"It is believed that {' '.join(shown[0].split())}"}
        case "answerer":
            score = score_of(shown[0], shown[1].split(":")[0], weak)
            return f"An explanation that is worth {score} points, as it seems to me."
        case "senior":
            reply = {"answer": "The reference, which says whom it puts down and why."}
        case "scorer":
            worth = re.search(r"worth (\d+) points", shown[-1])
            return f"It has some points of the reference.\nRating: [[{worth[1] if worth else FULL}]]"
        case "refiner":
            reply = {"explanation": "The picture says it.", "rewritten": f"{REWRITTEN}{shown[-2]}"}
        case _:
            return None
    return json.dumps(reply)


@dataclass(frozen=True)
class Demonstration:
    """A world in which a paper's figures are known: those ``planted`` have the shape of the stage's own."""

    planted: Callable[[Path], Mapping[str, Any]]
    draw: Callable[[Path], object] = bool
    servers: Callable[[], Mapping[str, FakeModelServer]] = dict

    @contextlib.contextmanager
    def models(self) -> Iterator[dict[str, dict[str, Any]]]:
        """Runs the stand-ins; yields their tables of the file of models, by name."""
        with served(self.servers()) as urls:
            # The same server at another address is the same model: its stored calls hold.
            yield {name: {"url": url, "model": name, "server": name, "family": name} for name, url in urls.items()}


def _f1s(pairs: Sequence[tuple[str, str | None]], labels: Sequence[str]) -> list[float]:
    """F1 of each label, from gold and answer of each item."""
    found = []
    for label in labels:
        hits = sum(gold == answer == label for gold, answer in pairs)
        named = sum((gold == label) + (answer == label) for gold, answer in pairs)
        found.append(2 * hits / named if named else 0.0)
    return found


def _witness(_: Path) -> Mapping[str, Any]:
    facts = draw_world()
    reader = WorldReader(facts)
    labels = {"SUPPORTED": "True", "REFUTED": "False"}
    arms = []
    for arm in Arm:
        pairs = [
            (str(fact.true), labels.get(expected_finding(fact, arm, remembers=reader.remembers(fact)).name))
            for fact in facts
        ]
        scores = _f1s(pairs, ("False", "True"))
        shares = [_mean([gold == label for gold, _ in pairs]) for label in ("False", "True")]
        arms.append(
            {
                "arm": str(arm),
                "f1:False": scores[0],
                "f1:True": scores[1],
                "macro_f1": _mean(scores),
                "weighted_f1": sum(share * f1 for share, f1 in zip(shares, scores, strict=True)),
                "coverage": _mean([answer is not None for _, answer in pairs]),
            }
        )
    return {"bingcheck": {"arms": arms}}


_READER = Ability(harmful=0.95, benign=0.95, eyes=0.2, description=0.55, precedents=0.25)
"""The model that stands in for those of ClimateMemes: it sees little itself, and captions and examples help it."""


def _draw(data: Path, *, train: int, test: int, seed: int) -> None:
    if not (data / KEY).exists():
        make(data, Layout.FHM, train=train, val=0, test=test, seed=seed, size=(320, 240))


def _labels(data: Path) -> Mapping[str, Any]:
    memes = [meme for meme in read_key(data) if meme.split == "test_seen"]
    stance, frames = [], []
    for caption, shots in product((False, True), (0, 4)):
        aids = frozenset({"precedents"} if shots else ())
        seen = [JudgeInput(meme.text, meme.badge, meme.badge if caption else None, aids) for meme in memes]
        name = f"picture+text{'+caption' * caption},{shots}-shot"
        pairs = [(target_of(one.text, one.badge), answer_target(one, _READER)) for one in seen]
        present = [label for label in TARGETS if any(label in pair for pair in pairs)]
        figures = {
            "accuracy": _mean([gold == answer for gold, answer in pairs]),
            "macro-f1": sum(_f1s(pairs, present)) / len(TARGETS),
        }
        stance.append({"run": name, "card": {"figures": figures}})
        signs = [(set(signs_of(one.text, one.badge)), set(answer_signs(one, _READER))) for one in seen]
        binary = [[(str(sign in gold), str(sign in answer)) for gold, answer in signs] for sign in SIGNS]
        figures = {
            "mean-binary-accuracy": _mean([_mean([gold == answer for gold, answer in each]) for each in binary]),
            "mean-binary-macro-f1": _mean([_mean(_f1s(each, ("True", "False"))) for each in binary]),
        }
        frames.append({"run": name, "card": {"figures": figures}})
    counts = [sum(target_of(meme.text, meme.badge) == label for meme in memes) for label in TARGETS]
    sign_counts = [sum(sign in signs_of(meme.text, meme.badge) for meme in memes) for sign in SIGNS]
    return {
        "stance-llava": {"tables": [{"rows": stance}]},
        "frames-llava": {"tables": [{"rows": frames}]},
        "describe": {
            "tables": [
                {"key": "target-by-split", "rows": [["test", len(memes), *counts]]},
                {"key": "signs-by-split", "rows": [["test", len(memes), *sign_counts]]},
            ]
        },
    }


_STRENGTHS = {"ash": 1.2, "beech": 0.6, "cedar": 0.0, "elm": -0.6, "fir": -1.2}


def _speakers(favours: float = 1.6, unaided: float = 0.4, *, varied: bool = False) -> Mapping[str, FakeModelServer]:
    """Models of known strength; one judge may take sides, and all see less without a fused guideline."""
    return {
        name: FakeModelServer(
            Settings(model=name, capacity=64),
            answer=ArenaVoice(
                name,
                strength,
                favours=favours * (name == "cedar"),
                unaided=unaided,
                varied=varied,
                detects=0.6 + strength / 3,
            ).answer,
        )
        for name, strength in _STRENGTHS.items()
    }


def _arena(_: Path, *, anchor: str = "") -> Mapping[str, Any]:
    middle = _STRENGTHS[anchor] if anchor else _mean(list(_STRENGTHS.values()))
    rows = [
        {"model": name, "rating": 1000 + 400 / math.log(10) * (strength - middle)}
        for name, strength in _STRENGTHS.items()
    ]
    # No judge or baseline changes who is stronger.
    alike = {"spearman": 1.0}
    return {"arena": {"boards": [{"dimension": "overall", "rows": rows}]}, "judges": alike, "baselines": alike}


def _weakness(data: Path) -> Mapping[str, Any]:
    texts = [meme.text for meme in read_key(data) if meme.split == "test_seen"]
    rows: list[dict[str, Any]] = []
    # A drawn split may lack a kind.
    for kind in sorted(filter(None, set(map(kind_of, texts)))):
        scores = [score_of(text, kind, WEAK) for text in texts if kind_of(text) == kind]
        rows.append(
            {"name": kind, "before": {"mean": _mean(scores), "failure": _mean([score <= 4 for score in scores])}}
        )
    means = {name: _mean([row["before"][name] for row in rows]) for name in ("mean", "failure")}
    named = {"score": means["mean"], "failure_before": means["failure"]}
    cells = [
        {"target": "weak", "category": "mean of categories", "figures": named},
        {
            "target": "able",
            "category": "mean of categories",
            "figures": {"score": FULL, "failure": 0, "failure_before": 0},
        },
    ]
    return {"llava-v1-6-7b": {"categories": rows}, "compare": {"cells": cells}}


def _probed() -> Mapping[str, FakeModelServer]:
    return {
        name: FakeModelServer(
            Settings(model=name, capacity=64), answer=partial(probe_reply, weak=WEAK * (name == "weak"))
        )
        for name in ("weak", "able", "controller")
    }


def _courts() -> Mapping[str, FakeModelServer]:
    return {name: oracle_server(name, ability) for name, ability in ABILITIES.items()}


DEMONSTRATIONS: Mapping[str, Demonstration] = {
    "adammeme": Demonstration(_weakness, partial(_draw, train=4, test=24, seed=61), _probed),
    "climatememes": Demonstration(
        _labels, partial(_draw, train=48, test=48, seed=3), lambda: {"oracle": oracle_server("oracle", _READER)}
    ),
    "emulate": Demonstration(_witness),
    "probench": Demonstration(
        partial(_arena, anchor="cedar"),
        partial(_draw, train=4, test=24, seed=5),
        partial(_speakers, 0.0, 1.0, varied=True),
    ),
    "memecourt": Demonstration(
        _court, draw_benchmarks, lambda: {name: oracle_server(name, ability) for name, ability in ABILITIES.items()}
    ),
    "memearena": Demonstration(_arena, partial(_draw, train=4, test=24, seed=5), _speakers),
}
