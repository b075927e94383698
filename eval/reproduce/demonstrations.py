"""Demonstrations of the papers whose figures come from our other commands: drawn data, stand-ins, and planted truth."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean as _mean
from typing import Any

from eval.reproduce.drawn import oracle_server, served
from eval.reproduce.probe_world import FULL, WEAK, ProbeVoice, kind_of, score_of
from eval.solvers.witness import Arm
from eval.standin.server import FakeModelServer
from eval.standin.settings import FEATURES, Settings
from eval.synthetic.arena_oracle import ArenaVoice
from eval.synthetic.make import KEY, Layout, make, read_key
from eval.synthetic.oracle import Ability, JudgeInput, answer_signs, answer_target
from eval.synthetic.world import SIGNS, TARGETS, signs_of, target_of
from eval.witness.world import WorldReader, draw_world, expected


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
            (str(fact.true), labels.get(expected(fact, arm, remembers=reader.remembers(fact)).name)) for fact in facts
        ]
        scores = [{"f1": f1} for f1 in _f1s(pairs, ("False", "True"))]
        shares = [_mean([gold == label for gold, _ in pairs]) for label in ("False", "True")]
        arms.append(
            {
                "arm": str(arm),
                "labels": scores,
                "macro_f1": _mean([one["f1"] for one in scores]),
                "weighted_f1": sum(share * one["f1"] for share, one in zip(shares, scores, strict=True)),
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
        seen = [JudgeInput(meme.text, meme.badge, meme.badge if caption else None, follow=shots > 0) for meme in memes]
        name = f"picture+text{'+caption' * caption},{shots}-shot"
        pairs = [(target_of(one.text, one.badge), answer_target(one, _READER)) for one in seen]
        present = [label for label in TARGETS if any(label in pair for pair in pairs)]
        figures = {
            "accuracy": _mean([gold == answer for gold, answer in pairs]),
            "macro-f1": sum(_f1s(pairs, present)) / len(TARGETS),
        }
        stance.append({"name": name, "card": {"figures": figures}})
        signs = [(set(signs_of(one.text, one.badge)), set(answer_signs(one, _READER))) for one in seen]
        binary = [[(str(sign in gold), str(sign in answer)) for gold, answer in signs] for sign in SIGNS]
        figures = {
            "mean-binary-accuracy": _mean([_mean([gold == answer for gold, answer in each]) for each in binary]),
            "mean-binary-macro-f1": _mean([_mean(_f1s(each, ("True", "False"))) for each in binary]),
        }
        frames.append({"name": name, "card": {"figures": figures}})
    counts = [sum(target_of(meme.text, meme.badge) == label for meme in memes) for label in TARGETS]
    sign_counts = [sum(sign in signs_of(meme.text, meme.badge) for meme in memes) for sign in SIGNS]
    return {
        "stance-llava": {"groups": [{"runs": stance}]},
        "frames-llava": {"groups": [{"runs": frames}]},
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
            Settings(model=name, capacity=64, features=FEATURES - {"picture_ids"}),
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
        name: FakeModelServer(Settings(model=name, capacity=64), answer=ProbeVoice(WEAK * (name == "weak")).answer)
        for name in ("weak", "able", "controller")
    }


def _reader() -> Mapping[str, FakeModelServer]:
    return {"oracle": oracle_server("oracle", _READER)}


DEMONSTRATIONS: Mapping[str, Demonstration] = {
    "adammeme": Demonstration(_weakness, partial(_draw, train=4, test=24, seed=61), _probed),
    "climatememes": Demonstration(_labels, partial(_draw, train=48, test=48, seed=3), _reader),
    "emulate": Demonstration(_witness),
    "probench": Demonstration(
        partial(_arena, anchor="cedar"),
        partial(_draw, train=4, test=24, seed=5),
        partial(_speakers, 0.0, 1.0, varied=True),
    ),
    "memearena": Demonstration(_arena, partial(_draw, train=4, test=24, seed=5), _speakers),
}
