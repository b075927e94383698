"""Tests of runs and studies with templates held apart: exclusions, the options that request them, and resuming."""

import random

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from eval.cli import cli
from eval.datasets.items import JudgedMeme, Protocol
from eval.datasets.known import known_cards
from eval.runs.results import Judged, RunFolder, not_judged, read_results
from eval.scores.metrics import group_numbers_of, task_card
from eval.synthetic.make import Layout, make
from retrieval.audit.leakage import TEMPLATE, template_numbers
from retrieval.embed.descriptor import describe
from retrieval.library.library import Library
from tests.support.drawn_memes import BACKGROUNDS, COPIES, GROUPS, KIND, OPENERS, TIMES, Caption, captioned_meme


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with drawn memes; some in train share a scene with some in test."""
    root = tmp_path_factory.mktemp("apart")
    make(root / "data", Layout.HARMEME, train=40, val=4, test=8, seed=3)
    return root


def invoke(world, *args, code=0):
    result = CliRunner().invoke(cli, [str(arg) for arg in args], env={"MEMECOURT_HOME": str(world / "home")})
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.slow
def test_template_split_judges_the_test_split_without_its_templates(world):
    data = ("--dataset", "synthetic-harmeme", "--data", world / "data", "--limit", 3)
    run = ("run", *data, "--split", "template", "--out", world / "apart")
    output = invoke(world, *run)
    folder = RunFolder(world / "apart")
    manifest = folder.manifest()
    left_out = [excluded for excluded in folder.excluded() if excluded.why == "same template"]
    assert manifest.split == "test" and manifest.checked["template"] == TEMPLATE
    assert left_out and all(excluded.picture_similarity >= TEMPLATE for excluded in left_out)
    assert f"{len(left_out)} same template" in output
    in_library = {meme.id for meme in Library.open(world / "apart" / "library", None).memes}
    assert not in_library & {excluded.precedent for excluded in left_out}
    # Judged memes on one template are drawn together for the intervals. Three memes on two scenes:
    memes = folder.memes()
    descriptors = np.array([describe(Image.open(world / "data" / "images" / meme.image)) for meme in memes])
    on_one = descriptors @ descriptors.T >= TEMPLATE
    assert on_one.sum() == 5, "two of the three share a scene"
    (first, second) = np.flatnonzero(on_one.sum(axis=1) == 2)
    assert [meme.template for meme in memes].count("") == 1
    assert memes[first].template == memes[second].template == memes[first].id
    assert task_card(read_results(world / "apart"), Protocol.MERGED, resamples=10).groups == 2
    assert "The memes are of 2 groups" in invoke(world, "report", world / "apart")
    invoke(world, *run)
    assert "templates_apart" in invoke(world, "run", *data, "--out", world / "apart", code=1)
    # A library made for a run with shared templates is refused to a run without them.
    invoke(world, "run", *data, "--out", world / "together")
    library = ("--library", world / "together" / "library")
    refused = invoke(world, "run", *data, *library, "--split", "template", "--out", world / "other", code=1)
    assert "may be on templates of judged memes" in refused


@pytest.mark.slow
def test_classify_supports_the_template_split(world):
    data = ("--dataset", world / "data" / "card.toml", "--data", world / "data", "--limit", 3)
    output = invoke(world, "classify", *data, "--task", "target", "--split", "template", "--out", world / "classified")
    folder = RunFolder(world / "classified")
    assert folder.manifest().split == "test" and folder.manifest().checked["template"] == TEMPLATE
    assert any(excluded.why == "same template" for excluded in folder.excluded())
    assert any(meme.template for meme in folder.memes()) and "which are drawn whole" in output


@pytest.mark.slow
def test_study_applies_the_template_split_to_all_arms(world):
    study = ("ablate", "--dataset", "synthetic-harmeme", "--data", world / "data", "--procedure", "summary")
    study = (*study, "--arms", "full", "--limit", 3, "--out", world / "study")
    invoke(world, *study, "--split", "template")
    excluded = RunFolder(world / "study" / "full").manifest()
    assert excluded.split == "test" and excluded.checked["template"] == TEMPLATE
    # The arms share precedents; the templates of the judged memes are stored beside them.
    assert any(meme.template for meme in RunFolder(world / "study" / "full").memes())
    assert "templates_apart" in invoke(world, *study, code=1)


def test_template_numbers_are_connected_components_of_similar_pictures():
    rng = np.random.default_rng(5)
    # More than one block, so that pairs of two blocks are compared as well.
    descriptors = rng.normal(size=(600, 8)).astype(np.float32)
    descriptors /= np.linalg.norm(descriptors, axis=1, keepdims=True)
    descriptors[[3, 590]] = 0  # without a picture: similar to no other, not even to each other
    numbers = template_numbers(descriptors, 0.9)
    n, expected = connected_components(coo_array(descriptors @ descriptors.T >= 0.9), directed=False)
    assert len(set(numbers.tolist())) == n > 1 and n < 598
    assert len(set(zip(numbers.tolist(), expected.tolist(), strict=True))) == n
    assert numbers[0] == 0 and np.all(np.diff(np.unique(numbers, return_index=True)[1]) > 0)
    assert template_numbers(np.empty((0, 8), dtype=np.float32), 0.9).shape == (0,)


def test_memes_sharing_a_group_or_template_are_drawn_together():
    def judged(number, group, template):
        meme = JudgedMeme(
            id=f"m{number}", split="test", line=1, image="", text="", harmful=True, source_label="", group=group
        )
        return Judged(meme.model_copy(update={"template": template}), not_judged(meme.id))

    def numbers(*pairs):
        found = group_numbers_of([judged(number, *pair) for number, pair in enumerate(pairs)])
        return None if found is None else found.tolist()

    assert numbers(("", ""), ("", "")) is None
    assert numbers(("a", ""), ("", ""), ("a", ""), ("b", ""), ("", "")) == [0, 1, 0, 2, 3]
    assert numbers(("a", ""), ("a", "m1"), ("b", "m1"), ("b", ""), ("c", "")) == [0, 0, 0, 0, 1]
    assert numbers(("a", ""), ("", "a")) == [0, 1], "a group and a template of the same name are unrelated"


def test_no_data_set_has_a_split_named_template():
    assert all(split.name != "template" for dataset in known_cards() for split in dataset.splits)


@pytest.mark.slow
def test_template_threshold_separates_pictures_but_misses_many_edits():
    """The figures of docs/studies.md: four edited memes on each of 46 pictures, one of them with its text on a bar."""
    rng = random.Random(3)
    edits = ("the same", "JPEG, quality 70", "half the size", "cropped by 2 % a side", "white border")
    descriptors, bases = [], []
    for place, base in enumerate(BACKGROUNDS):
        for number in range(4):
            words = (rng.choice(OPENERS), rng.choice(list(GROUPS)), rng.choice(list(KIND)), rng.choice(TIMES))
            picture = captioned_meme(base, Caption(*words, bar=number == 3))
            descriptors.append(describe(COPIES[edits[(number + place) % 5]](picture)))
            bases.append(base)
    first, second = np.triu_indices(len(bases), 1)
    similar = (np.stack(descriptors) @ np.stack(descriptors).T)[first, second] >= TEMPLATE
    names = np.array(bases)
    same = names[first] == names[second]
    scenes = np.array([base.partition(":")[0] for base in bases])
    other = scenes[first] != scenes[second]
    print(
        f"same picture {similar[same].mean():.3f} of {same.sum():,}, "
        f"other {similar[other].mean():.5f} of {other.sum():,}"
    )
    assert similar[same].mean() == pytest.approx(0.54, abs=0.01) and not similar[other].any()
