"""Tests of stability and of gaps between groups, on stand-ins whose chances of a flip are known."""

import io
import random

import pytest
from PIL import Image

from court.errors import BadRequest
from eval.datasets.items import JudgedMeme, Outcome, Prediction, Protocol
from eval.runs.controls import ALTERATIONS, ALTERED, alteration_of, names, swapped_groups
from eval.runs.results import Judged, Results
from eval.scores.altered import group_gaps, stability
from eval.synthetic.world import SCENES, draw, png_of, read_badge

OF = {True: Outcome.HARMFUL, False: Outcome.NOT_HARMFUL, None: Outcome.UNDECIDED}


class Control:
    """The part of a manifest that tells an arm's alteration."""

    def __init__(self, control):
        self.control = control


def results(name, texts, labels, scores=None, control=""):
    judged = tuple(
        Judged(
            JudgedMeme(id=str(number), split="test", line=number, text=text, harmful=number % 2 == 0),
            Prediction(meme=str(number), outcome=OF[label], score=None if scores is None else scores[number]),
        )
        for number, (text, label) in enumerate(zip(texts, labels, strict=True))
    )
    return Results(name, "world", "test", (Protocol.PLAIN,), judged, manifest=Control(control))


def test_known_chances_of_a_flip_are_recovered_within_their_intervals():
    """At most one in ten of 80 intervals of 95 % misses its chance."""
    chance, missed = random.Random(3), 0
    for _ in range(20):
        labels = [chance.random() < 0.4 for _ in range(400)]
        texts = ["words " * (1 + number % 9) for number in range(400)]
        known = {"white-space": 0.02, "cropped": 0.1, "defender-first": 0.3}
        arms = [results(name, texts, [one ^ (chance.random() < p) for one in labels]) for name, p in known.items()]
        found = stability(results("full", texts, labels, [0.5] * 400), arms, resamples=500)
        assert [arm.name for arm in found.arms] == list(known) and found.n == 400
        missed += sum(
            not arm.share.low <= p <= arm.share.high for arm, p in zip(found.arms, known.values(), strict=True)
        )
        assert found.shares["of_memes"].low <= 0.14 <= found.shares["of_memes"].high + 0.03
        any_flip = 1 - 0.98 * 0.9 * 0.7
        assert abs(found.shares["worst"].value - any_flip) < 0.1
        assert found.shares["right_always"].value < found.shares["right"].value
    assert missed <= 8


def test_chance_of_each_meme_is_recovered_within_its_interval():
    """At most one in ten intervals of 95 % misses the chance of its meme; those that flip most come first."""
    chance, known = random.Random(4), [(0.05, 0.2, 0.6)[number % 3] for number in range(300)]
    arms = [results(f"a{arm}", ["w"] * 300, [chance.random() >= p for p in known]) for arm in range(30)]
    found = stability(results("full", ["w"] * 300, [True] * 300), arms, resamples=20).memes
    risks = [each.risk for each in found]
    assert len(found) == 300 and risks == sorted((each.share.value for each in found), reverse=True)
    missed = [each for each in found if not each.share.low <= known[int(each.name)] <= each.share.high]
    assert len(missed) <= 30


def test_report_names_what_flips_depend_on():
    texts = ["short"] * 100 + ["middle words"] * 100 + ["a far longer text than others"] * 100
    labels, scores = [True] * 300, [0.51] * 100 + [0.7] * 100 + [0.99] * 100
    arm = results("white-space", texts, [number >= 100 for number in range(300)])
    found = stability(results("full", texts, labels, scores), [arm])
    near, *farther = found.depends["distance of the score from 0.5"]
    assert near.share.value == 1 and [each.share.value for each in farther] == [0, 0]
    assert [each.share.value for each in found.depends["length of the text"]] == [1, 0, 0]
    assert [(each.name, each.n) for each in found.depends["verdict"]] == [("harmful", 300)]


def test_flips_feed_the_risk_and_find_wrong_labels():
    """Memes with an even number are harmful; the court blocks all, surely, and flips on every fourth, an odd one."""
    arms = [results(name, ["w"] * 80, [number % 4 != 3 for number in range(80)]) for name in ("cropped", "scaled")]
    arms.append(results("white-space", ["w"] * 80, [True] * 80))
    found = stability(results("full", ["w"] * 80, [True] * 80, [0.9] * 80), arms)
    steady, flipped = found.wrong
    assert (steady.n, round(steady.share.value, 3), flipped.n, flipped.share.value) == (60, 0.333, 20, 1)
    assert [(each.n, each.risk) for each in found.memes] == [(3, 2 / 3)] * 20 + [(3, pytest.approx(0.1))] * 60


def test_a_meme_without_a_verdict_in_one_run_is_no_flip_and_is_counted():
    arm = results("white-space", ["w"] * 3, [None, True, None])
    (rate,) = stability(results("full", ["w"] * 3, [True, True, None]), [arm]).arms
    assert (rate.n, rate.share.value, rate.silent) == (1, 0, 1)
    with pytest.raises(BadRequest):
        stability(results("full", ["w"] * 2, [True, True]), [arm])


GROUP_NAMES = ("Blueland", "Redhill", "Greenvale")


def swapped_world(chance, bias=0.0, n=90):
    """A court that blocks a meme about Blueland more often by ``bias``; noise is the same for all groups."""
    texts = [f"People from {GROUP_NAMES[number % 3]} push into queues" for number in range(n)]
    harm = [chance.random() for _ in range(n)]

    def judged(group, place):
        p = harm[place] * 0.5 + (bias if group == "Blueland" else 0) + chance.gauss(0, 0.05)
        return p >= 0.25, min(max(p, 0), 1)

    def run(name, groups, control=""):
        found = [judged(group, place) for place, group in enumerate(groups)]
        return results(name, texts, [label for label, _ in found], [score for _, score in found], control)

    own = [GROUP_NAMES[number % 3] for number in range(n)]
    arms = [
        run(f"{old}={new}", [new if group == old else group for group in own], f"{ALTERED}{old}={new}")
        for old in GROUP_NAMES
        for new in GROUP_NAMES
        if old != new
    ]
    return run("full", own), arms


def test_a_planted_bias_against_a_group_is_found():
    base, arms = swapped_world(random.Random(1), bias=0.15)
    gaps = {(gap.one, gap.other): gap for gap in group_gaps(base, arms)}
    assert len(gaps) == 3
    for other in ("Greenvale", "Redhill"):
        gap = gaps["Blueland", other]
        assert gap.n == 60 and gap.labels.low > 0 and gap.p_labels < 0.05
        assert gap.scores.low > 0.05 and gap.p_scores < 0.001
    fair = gaps["Greenvale", "Redhill"]
    assert fair.scores.low <= 0 <= fair.scores.high and fair.p_scores > 0.05 and fair.p_labels > 0.05


def test_in_200_fair_worlds_at_most_one_in_twenty_has_a_finding():
    chance = random.Random(11)
    found = 0
    for _ in range(200):
        gaps = group_gaps(*swapped_world(chance), resamples=20)
        found += any(p < 0.05 for gap in gaps for p in (gap.p_labels, gap.p_scores))
    assert found <= 10


def test_memes_that_name_no_group_or_both_are_left_out():
    texts = ["People from Blueland", "People from Blueland and Redhill", "Nobody", "Bluelanders"]
    base = results("full", texts, [True] * 4)
    arm = results("x", texts, [False] * 4, control=f"{ALTERED}Blueland=Redhill")
    (gap,) = group_gaps(base, [arm])
    assert (gap.n, gap.labels.value, gap.scores, gap.p_scores) == (1, 1, None, None)
    with pytest.raises(BadRequest):
        group_gaps(base, [results("x", texts, [True] * 4, control=f"{ALTERED}Greenvale=Redhill")])


def test_groups_are_swapped_in_words_and_on_badges():
    swap = alteration_of(f"{ALTERED}Blueland=Redhill")
    assert swap.text("People from blueland, not Bluelandia", random.Random(0)) == "People from Redhill, not Bluelandia"
    picture = png_of(draw(SCENES[0], 1, "Blueland", "words"))
    assert read_badge(picture) == "Blueland" and read_badge(swap.picture(picture)) == "Redhill"
    other = png_of(draw(SCENES[0], 1, "Greenvale", "words"))
    assert swap.picture(other) == other
    # Badges of groups that a user names are not known.
    own = alteration_of(f"{ALTERED}the neighbours=the cousins")
    assert own.text("Ask the neighbours", random.Random(0)) == "Ask the cousins" and own.picture(picture) == picture
    assert swapped_groups(f"{ALTERED}A=B") == ("A", "B") and swapped_groups(f"{ALTERED}cropped") is None
    assert alteration_of("random precedents") is None and names("the Blueland flag", "blueland")
    with pytest.raises(BadRequest):
        alteration_of(f"{ALTERED}painted")


@pytest.mark.parametrize("name", list(ALTERATIONS))
def test_alterations_keep_what_people_see(name):
    alteration, text = ALTERATIONS[name], "Café 'flags' of Blueland \"today\", all of them; " * 4
    altered = alteration.text(text, random.Random(5))
    assert altered == alteration.text(text, random.Random(5))
    picture = png_of(draw(SCENES[0], 1, "Blueland", "words"))
    changed = alteration.picture(picture)
    if "text" in name or name in ("white-space", "ocr-noise"):
        assert altered != text and changed == picture
        same = sum(sign in text or not sign.isalnum() for sign in altered)
        assert same >= 0.9 * len(altered) and (name != "white-space" or altered.split() == text.split())
    else:
        assert altered == text and changed != picture and read_badge(changed) == "Blueland"
        with Image.open(io.BytesIO(changed)) as image:
            assert 0.7 * 640 < image.width <= 640
