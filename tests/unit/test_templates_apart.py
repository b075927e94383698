"""Runs and studies with templates held apart: what they leave out, how they are asked for, and taken up again."""

import random

import numpy as np
import pytest
from click.testing import CliRunner

from eval.cli import cli
from eval.datasets.known import DATASETS
from eval.runs.folder import RunFolder
from eval.synthetic.make import Layout, make
from retrieval.audit.leakage import TEMPLATE
from retrieval.embed.descriptor import describe
from retrieval.library.library import Library
from tests.support.drawn_memes import BASES, COPIES, GROUPS, KIND, OPENERS, TIMES, Caption, drawn

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with drawn memes, of which some in train are drawn on scenes of some in test."""
    root = tmp_path_factory.mktemp("apart")
    make(root / "data", Layout.HARMEME, train=40, val=4, test=8, seed=3)
    return root


def invoke(world, *args, code=0):
    told = CliRunner().invoke(cli, [str(arg) for arg in args], env={"MEMECOURT_HOME": str(world / "home")})
    assert told.exit_code == code, told.output
    return told.output


def test_a_run_by_the_split_template_judges_the_test_split_without_its_templates(world):
    data = ("--dataset", "synthetic-harmeme", "--data", world / "data", "--limit", 3)
    told = invoke(world, "run", *data, "--split", "template", "--out", world / "apart")
    folder = RunFolder(world / "apart")
    manifest = folder.manifest()
    left_out = [one for one in folder.excluded() if one.why == "same template"]
    assert manifest.split == "test" and manifest.checked["template"] == TEMPLATE
    assert left_out and all(one.picture_similarity >= TEMPLATE for one in left_out)
    assert f"{len(left_out)} same template" in told
    there = {meme.id for meme in Library.open(world / "apart" / "library", None).memes}
    assert not there & {one.precedent for one in left_out}
    # As it was begun, and with nothing said anew.
    invoke(world, "run", "--resume", world / "apart")
    refused = invoke(world, "run", "--resume", world / "apart", "--templates-apart", code=2)
    assert "can't be given with --resume" in refused
    # The precedents of a run that lets templates be shared are not those of one that doesn't.
    invoke(world, "run", *data, "--out", world / "together")
    library = ("--library", world / "together" / "library")
    refused = invoke(world, "run", *data, *library, "--templates-apart", "--out", world / "other", code=1)
    assert "may be on templates of judged memes" in refused


def test_a_study_holds_templates_apart_in_all_arms(world):
    study = ("ablate", "--dataset", "synthetic-harmeme", "--data", world / "data", "--procedure", "summary")
    study = (*study, "--arms", "full", "--limit", 3, "--out", world / "study")
    invoke(world, *study, "--split", "template")
    excluded = RunFolder(world / "study" / "full").manifest()
    assert excluded.split == "test" and excluded.checked["template"] == TEMPLATE
    assert "templates_apart" in invoke(world, *study, code=1)


def test_no_data_set_has_a_split_of_that_name():
    assert all("template" not in dataset.splits for dataset in DATASETS.values())


def test_the_threshold_tells_templates_apart_and_misses_many():
    """The figures of docs/studies.md: on each of 46 pictures four memes, edited, one of them with its text on a bar."""
    rng = random.Random(3)
    edits = ("the same", "JPEG, quality 70", "half the size", "cropped by 2 % a side", "white border")
    looks, bases = [], []
    for place, base in enumerate(BASES):
        for number in range(4):
            words = (rng.choice(OPENERS), rng.choice(list(GROUPS)), rng.choice(list(KIND)), rng.choice(TIMES))
            picture = drawn(base, Caption(*words, bar=number == 3))
            looks.append(describe(COPIES[edits[(number + place) % 5]](picture)))
            bases.append(base)
    first, second = np.triu_indices(len(bases), 1)
    near = (np.stack(looks) @ np.stack(looks).T)[first, second] >= TEMPLATE
    names = np.array(bases)
    same = names[first] == names[second]
    scenes = np.array([base.partition(":")[0] for base in bases])
    other = scenes[first] != scenes[second]
    print(f"same picture {near[same].mean():.3f} of {same.sum():,}, other {near[other].mean():.5f} of {other.sum():,}")
    assert near[same].mean() == pytest.approx(0.54, abs=0.01) and not near[other].any()
