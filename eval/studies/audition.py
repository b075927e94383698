"""An audition of models: full trials of memes whose truth is known, beside the procedures that they compete with."""

import shutil
from dataclasses import replace
from pathlib import Path

from eval.datasets.known import SYNTHETIC_KEY
from eval.runs.plan import Plan
from eval.studies.arms import ARMS, FULL_ARM, Arm, Study
from eval.synthetic.make import Layout, make

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
