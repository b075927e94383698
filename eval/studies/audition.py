"""An audition of models: full trials of memes whose truth is known, beside the procedures that they compete with."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from court.audition import Audition, Bound
from court.errors import BadRequest
from court.events import CheckFailed, JudgeRuled, OddsGiven, TrialOpened
from court.judgment import score_of
from court.record import TrialRecord
from court.verdict import Label
from eval.datasets.known import SYNTHETIC_KEY
from eval.runs.plan import Plan
from eval.scores.weighing import Evidence, Weighing
from eval.studies.arms import ARMS, FULL_ARM, Arm, Study
from eval.synthetic.make import Layout, make

MOST = 60
"""Memes of an audition."""
DRAWN, STUDY = "drawn", "study"
"""Folders of an audition: the drawn memes, and the study of them."""
_SEED, _TRAIN = 39, 120
AGAIN, ALONE, COMPUTE = "again", "dull-judge", "equal-compute"
_AGAIN = Arm(name=AGAIN, what="the same with replies that are drawn (temperature 0.7)", temperature=0.7)


def draw_memes(root: Path, memes: int) -> Path:
    """Draws the memes of every audition, unless they are there; returns their folder."""
    data = root / DRAWN
    if not (data / SYNTHETIC_KEY).exists():
        # Left by a process that was killed: the key is written last.
        shutil.rmtree(data, ignore_errors=True)
        make(data, Layout.HARMEME, train=_TRAIN, val=0, test=memes, seed=_SEED)
    return data


def audition_study(plan: Plan, *, labelled: bool) -> Study:
    """Returns the study of an audition.

    Args:
        labelled: True for memes of the operator's, which are tried in full and in no other way.
    """
    # The audition that is in force must not judge itself.
    trial = plan.settings.trial.model_copy(update={"probes": True})
    settings = plan.settings.model_copy(update={"trial": trial, "audition": None})
    arms = (ARMS[FULL_ARM],) if labelled else (ARMS[FULL_ARM], _AGAIN, ARMS[ALONE], ARMS[COMPUTE])
    return Study("audition", replace(plan, out=plan.out / STUDY, settings=settings), arms)


def checked_in(record: TrialRecord) -> tuple[CheckFailed, ...]:
    """Returns the checks that failed in a trial."""
    checked = record.checked
    return checked.failed if checked else ()


def odds_in(record: TrialRecord) -> tuple[OddsGiven, ...]:
    """Returns the odds of the Judge, or of each judge, after the sides were heard."""
    ruled = record.verdict_event
    odds = [ruled.odds if ruled else None, *(each.odds for each in record.all(JudgeRuled))]
    return tuple(each for each in odds if each is not None)


def evidence_in(meme: str, gold: bool, record: TrialRecord) -> Evidence:
    """Returns the evidence of a trial, as a calibration weighs it in the court."""
    least = record.opened.settings.get("least_label_mass")
    mass = float(least) if isinstance(least, int | float) else 0.0
    checked, verdict = record.checked, record.verdict
    after = [score for odds in odds_in(record) if (score := score_of(odds, mass)) is not None]
    cited = record.precedents
    labelled = verdict is not None and verdict.label is not Label.UNDECIDED
    return Evidence(
        meme=meme,
        harmful=gold,
        ruled=verdict.label is Label.HARMFUL if verdict is not None and labelled else None,
        before=score_of(checked.unheard, mass) if checked else None,
        after=sum(after) / len(after) if after else None,
        vote=cited.vote.probability if cited and cited.vote else None,
        failed=len({each.check for each in checked_in(record)}),
    )


def bound_to(opened: Sequence[TrialOpened]) -> Bound:
    """Returns what the trials of an audition have in common. Raises BadRequest if they differ."""
    found = {
        each.model_dump_json(): each
        for each in (
            Bound.to(
                models=one.versions.models,
                weights=one.weights,
                prompts=one.versions.prompts,
                library=one.versions.library,
                policy=one.policy.digest,
                procedure=one.procedure,
                settings=one.settings,
            )
            for one in opened
        )
    }
    if len(found) != 1:
        raise BadRequest(
            "The trials were held with different models, servers or settings, as when a model was replaced in between: "
            "begin another audition in another folder.",
            reason="RUN_DIFFERS",
        )
    return next(iter(found.values()))


def audition_of(weighing: Weighing, bound: Bound, figures: dict[str, Any]) -> Audition:
    """Returns the file that serving reads."""
    return Audition(
        bound=bound,
        intercept=weighing.intercept,
        weights=weighing.weights,
        doubt=weighing.doubt,
        risk=weighing.risk,
        figures=figures,
    )
