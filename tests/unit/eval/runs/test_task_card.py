"""Tests of figures of answers: intervals, the annotators' ceiling, comparisons, and the choice among many."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binomtest

from court.errors import BadRequest
from eval.datasets.items import Outcome, Prediction, TaskAnswer
from eval.reports.label_sections import noise_section, subgroup_sections
from eval.reports.tasks import gather, sections_of
from eval.runs.results import Judged
from eval.scores.choose import rank
from eval.scores.compare import compare, in_words
from eval.scores.label_noise import find_task_noise
from eval.scores.metrics import task_card
from eval.scores.subgroups import NONE, SHARES, subgroup_tables
from eval.solvers.labelling import settle
from eval.solvers.vote import _groups
from retrieval.library.manifest import LabelledMeme
from tests.support.task_card import CARD, PAIRS, QUESTION, meme, results


def test_label_figures_of_0_or_1_have_the_exact_interval_of_their_memes():
    card = task_card(results(PAIRS), resamples=500)
    for name, count in (("precision:against", 4), ("recall:neither", 2), ("f1:neither", 2)):
        figure = card.figures[name]
        exact = binomtest(round(figure.value * count), count).proportion_ci(method="exact")
        assert (figure.low, figure.high) == pytest.approx((exact.low, exact.high))
    assert card.figures["precision:neither"] is None
    right = task_card(results([("for", "for")] * 3 + [("against", "against")] * 2), resamples=200)
    for name in ("accuracy", "micro-f1", "weighted-f1"):
        assert (right.figures[name].low, right.figures[name].high) == pytest.approx((0.025 ** (1 / 5), 1))
    assert right.figures["binary-accuracy:for"].low == pytest.approx(0.025 ** (1 / 5))
    # Memes of a group are not independent: four memes of two groups count as two observations.
    grouped = task_card(results(PAIRS, group=["a", "b"] * 11), resamples=500)
    precision = grouped.figures["precision:against"]
    assert (precision.low, precision.high) == pytest.approx((0.025 ** (1 / 2), 1))


def test_label_means_below_1_have_intervals_as_wide_as_their_memes_require():
    one = task_card(results([("for", "for")]), resamples=50)
    for name, value in (("macro-f1", 1 / 3), ("binary-macro-f1:for", 1 / 2)):
        figure = one.figures[name]
        assert figure.value == pytest.approx(value)
        assert (figure.low, figure.high) == pytest.approx((0.025 * figure.value, figure.value))
    # A label that is rightly denied everywhere, whatever is wrong elsewhere.
    partly = task_card(results([("for", "for"), ("for", "against")]), resamples=50)
    denied = partly.figures["binary-macro-f1:neither"]
    assert (denied.value, denied.low, denied.high) == pytest.approx((0.5, 0.5 * 0.025 ** (1 / 2), 0.5))
    # Half right, and the same in every resample of a single meme.
    several = QUESTION.model_copy(update={"kind": "multi"})
    answer = Prediction(meme="m0", outcome=Outcome.ANSWERED, said={"stance": TaskAnswer(labels=("for", "neither"))})
    run = results([("for", "for")], question=several)
    half = task_card(replace(run, judged=(replace(run.judged[0], prediction=answer),)), resamples=50)
    assert half.figures["jaccard"].value == 0.5
    assert half.figures["jaccard"].low < 0.05 and half.figures["jaccard"].high > 0.95


def test_ordinal_error_of_0_has_the_exact_interval_of_its_memes():
    ordinal = QUESTION.model_copy(update={"kind": "ordinal"})
    right = task_card(results([("for", "for"), ("neither", "neither"), ("for", None)], question=ordinal), resamples=50)
    # Of the two answered memes, each can be at most two steps off.
    assert (right.figures["mmae"].value, right.figures["mmae"].low) == (0, 0)
    assert right.figures["mmae"].high == pytest.approx(2 * (1 - 0.025 ** (1 / 2)))


def test_few_differing_memes_do_not_separate_two_runs():
    for count, sure in ((1, False), (5, False), (6, True)):
        pairs = [("for", "for")] * count
        right, wrong = results(pairs, name="right"), results([("for", "against")] * count, name="wrong")
        compared = compare(right, wrong, resamples=200)
        assert (compared.differing, compared.sure) == (count, sure)
        assert ("within noise" in " ".join(in_words(compared))) is not sure
        best, other = rank([right, wrong], resamples=200).ways
        assert best.within_noise and other.within_noise is not sure
    # Six memes of two groups count as two observations.
    grouped = [results([("for", answered)] * 6, group=["a", "b"] * 3) for answered in ("for", "against")]
    assert not compare(*grouped, resamples=200).sure


def test_unanswered_memes_are_wrong_and_the_baseline_is_the_most_frequent_label():
    card = task_card(results(PAIRS), resamples=500)
    assert (card.n, card.unanswered, card.failed, card.groups) == (22, 2, 2, 0)
    assert card.figures["accuracy"].value == pytest.approx(16 / 22)
    assert card.figures["accuracy"].low < 16 / 22 < card.figures["accuracy"].high
    assert (card.baseline_words, card.baseline["accuracy"]) == ("always for", pytest.approx(12 / 22))
    assert (card.gold["against"], card.said["against"]) == (8, 4)
    assert [card.figures[f"{kind}:against"].value for kind in ("recall", "precision")] == [0.5, 1.0]
    assert card.figures["precision:neither"] is None and card.figures["f1:neither"].value == 0


def test_agreement_ceiling_comes_from_the_annotators_votes():
    shares = [{"stance": {"for": 2 / 3, "against": 1 / 3}}] * 22
    card = task_card(results(PAIRS, shares=shares, annotators=[{"stance": 3}] * 22), resamples=200)
    # A "for" of two to one meets one for and one against: half right; the "against" meets two fors.
    assert card.figures["agreement-ceiling"].value == pytest.approx(2 / 3 / 2)
    assert "agreement-ceiling" not in task_card(results(PAIRS), resamples=200).figures


def test_metric_misspelled_in_a_card_is_an_error():
    wrong = QUESTION.model_copy(update={"metrics": ("f1:nobody",)})
    with pytest.raises(BadRequest, match="f1:nobody"):
        task_card(results(PAIRS, question=wrong), resamples=10)
    with_metric = QUESTION.model_copy(update={"metrics": ("f1:against",), "official": "f1:against"})
    assert next(iter(task_card(results(PAIRS, question=with_metric), resamples=10).figures)) == "f1:against"


def test_comparison_is_per_meme_and_matches_the_figures():
    better = [(gold, gold) for gold, _ in PAIRS]
    comparison = compare(results(better, "a"), results(PAIRS, "b"), resamples=500)
    assert (comparison.n, comparison.only_a_right, comparison.only_b_right, len(comparison.changed)) == (22, 6, 0, 6)
    assert (
        comparison.differences["accuracy"].value == pytest.approx(6 / 22) and comparison.differences["accuracy"].low > 0
    )
    assert comparison.sure and comparison.mcnemar_p == pytest.approx(2 * 0.5**6)
    assert "a is better in accuracy" in " ".join(in_words(comparison))
    same = compare(results(PAIRS, "a"), results(PAIRS, "b"), resamples=100)
    assert not same.sure and same.changed == () and "can't tell them apart" in in_words(same)[-1]
    other = QUESTION.model_copy(update={"task": "mood"})
    with pytest.raises(BadRequest, match="can't be compared"):
        compare(results(PAIRS), results(PAIRS, question=other))


def test_best_of_many_guessing_runs_is_flattered_and_not_sure():
    rng = np.random.default_rng(3)
    gold = rng.choice(QUESTION.labels, 40)
    guesses = [
        results([(g, str(s)) for g, s in zip(gold, rng.choice(QUESTION.labels, 40), strict=True)], f"r{n}")
        for n in range(6)
    ]
    choice = rank(guesses, resamples=1000)
    values = [way.value.value for way in choice.ways]
    assert values == sorted(values, reverse=True) and choice.ways[0].behind.value == 0
    assert choice.flattered_by > 0.01 and choice.ways[1].within_noise
    right = results([(str(g), str(g)) for g in gold], "right")
    sure = rank([*guesses, right], resamples=500)
    assert sure.ways[0].run == "right" and sure.flattered_by == 0
    assert not any(way.within_noise for way in sure.ways[1:])
    with pytest.raises(BadRequest, match="same memes"):
        rank([right, replace(right, judged=right.judged[1:])])


def scored_runs(official):
    """One run answers all memes, the other leaves the harder half open; by figures over answers, silence is better."""
    question = QUESTION.model_copy(update={"labels": ("for", "against"), "official": official})
    rng = np.random.default_rng(0)
    runs = []
    for name in ("whole", "half"):
        judged = []
        for number in range(80):
            gold, hard = question.labels[number % 2], number >= 40
            chance = rng.uniform() if hard else 0.9 if gold == "for" else 0.1
            scores = {"for": chance, "against": 1 - chance}
            answer = TaskAnswer(labels=(max(scores, key=scores.get),), scores=scores)
            prediction = Prediction(meme=f"m{number}", outcome=Outcome.ANSWERED, said={"stance": answer})
            if name == "half" and hard:
                prediction = Prediction(meme=f"m{number}", outcome=Outcome.FAILED, reason="REPLY_CUT")
            judged.append(Judged(meme(number, gold), prediction))
        runs.append(replace(results([], name, question), judged=tuple(judged)))
    return runs


@pytest.mark.parametrize("official", ["auroc", "micro-auroc", "brier"])
def test_run_that_leaves_the_harder_half_open_is_not_better(official):
    whole, half = scored_runs(official)
    up = -1 if official == "brier" else 1
    cards = [task_card(run, resamples=200) for run in (whole, half)]
    assert up * cards[1].figures[official].value > up * cards[0].figures[official].value
    assert [card.over[official] for card in cards] == [80, 40]
    strict = f"{official}-strict"
    assert cards[0].figures[strict] == cards[0].figures[official]
    assert up * cards[1].figures[strict].value < up * cards[0].figures[strict].value
    comparison = compare(whole, half, resamples=200)
    assert comparison.official == strict and official not in comparison.differences
    assert comparison.sure and comparison.better == "whole"
    assert f"whole is better in {strict}" in " ".join(in_words(comparison))
    choice = rank([half, whole], resamples=200)
    assert (choice.metric, [way.run for way in choice.ways]) == (strict, ["whole", "half"])
    assert choice.ways[1].behind.low > 0
    runs = [
        replace(run, manifest=run.manifest.model_copy(update={"question": run.question.model_copy(update=more)}))
        for run, more in ((whole, {}), (half, {"shots": 2}))
    ]
    sections = {section.key: section for section in sections_of(gather(runs))}
    rows = {row[0].lower(): row for row in sections["group-1-stance-figures-0"].rows}
    assert rows[f"{official} (official)"][2].endswith(" of 40") and " of " not in rows[strict][2]
    assert sections["group-1-stance-grid-0"].title.startswith(strict)
    head, compared = sections["group-1-stance-compared"].rows
    assert head[-1] == f"{strict} is" and (compared[0], compared[-1]) == ("half", "worse")


def test_majority_of_answers_decides_and_the_first_of_equals():
    assert settle(QUESTION, [("against",), ("for",), ("for",)]) == ("for",)
    assert settle(QUESTION, [("against",), ("for",)]) == ("against",)
    several = QUESTION.model_copy(update={"kind": "multi"})
    assert settle(several, [("for", "against"), ("for",), ("neither", "for")]) == ("for",)
    assert settle(several, [("for",), ()]) == ()


def test_groups_are_left_out_together_if_there_are_enough():
    memes = [LabelledMeme(id=f"m{n}", label="HARMFUL", has_text=True, has_picture=False) for n in range(60)]

    def groups(names):
        return _groups(memes, {f"m{n}": meme(n, "for", group=name) for n, name in enumerate(names)})

    found = groups([f"g{n % 30}" for n in range(60)])
    assert found.tolist() == [n % 30 for n in range(60)]
    assert groups([f"g{n % 5}" for n in range(60)]) is None  # too few
    assert groups([f"g{n}" for n in range(30)] + ["large"] * 30) is None  # one group contains half of the memes
    assert len(set(groups([f"g{n}" for n in range(25)] + [""] * 35).tolist())) == 60


def test_published_figures_appear_beside_runs_on_the_same_task_and_split():
    run = results(PAIRS)
    run = replace(run, manifest=run.manifest.model_copy(update={"card": CARD}))
    report = gather([run])
    (section,) = (candidate for candidate in sections_of(report) if candidate.key == "group-1-stance-published")
    head, ours, *theirs = section.rows
    assert head == ("system", "asked with", "memes", "accuracy", "macro-f1", "kappa")
    assert ours[:3] == ("run", "text, 0-shot", "22") and ours[3].startswith("0.727 [") and ours[5] == "–"
    assert theirs == [
        ("A (2024)", "text", "23", "–", "0.500", "0.250"),
        ("B", "", "22", "0.750", "–", "–"),
        ("C", "", "not said", "0.500", "–", "–"),
    ]
    assert section.notes == (
        "On 23 memes, and not on 22 as here: A.",
        "From a paper: A, B.",
        "odd: B.",
        "From a talk: C.",
    )
    title, figures, *_ = sections_of(report)
    assert "On this data set: they are few." in title.notes
    assert "Without an answer, run: 2 REPLY_CUT." in figures.notes
    assert not any("published" in section.key for section in sections_of(gather([results(PAIRS)])))


def test_subgroup_tables_show_accuracy_and_each_label():
    run = results(PAIRS)  # 12 "for", 8 "against" of which 4 are answered "for", 2 "neither" without an answer
    groups = {f"m{number}": ("first" if number < 16 else "last",) for number in range(22)}
    overall, *labels = subgroup_tables(run, groups)
    assert [(table.task, table.label) for table in (overall, *labels)] == [
        ("stance", ""),
        *(("stance", label) for label in QUESTION.labels),
    ]
    first, last = overall.groups
    right, silent = first.shares["accuracy"], last.shares["silent"]
    assert (first.name, first.n, right.count, right.rest) == ("first", 16, 12, 4 / 6)
    assert (silent.count, silent.n) == (2, 6) and tuple(first.shares) == ("accuracy", "silent")
    against = labels[1].groups
    assert [(g.harmful, g.shares["misses"].count, g.shares["misses"].n) for g in against] == [(4, 4, 4), (4, 0, 4)]
    alarms = labels[0].groups[0].shares["false_alarms"]
    assert (alarms.count, alarms.n) == (4, 4)
    # All p-values are corrected together: the smallest is multiplied by their number.
    shares = [share for t in (overall, *labels) for g in t.groups for share in g.shares.values()]
    tested = [share for share in shares if share.p is not None]
    assert {table.tests for table in (overall, *labels)} == {len(tested)}
    least = min(tested, key=lambda share: share.p)
    assert least.corrected == pytest.approx(min(1, least.p * len(tested)))
    sections = subgroup_sections("run", (overall, *labels))
    assert sections[0].rows[0] == ("group", "memes", "accuracy", "others", "no answer", "others")
    assert sections[2].rows[0][:4] == ("group", "memes", "against", "accuracy")
    assert sum("Fisher" in note for section in sections for note in section.notes) == 1


def test_task_with_two_labels_has_only_one_subgroup_table():
    two = QUESTION.model_copy(update={"kind": "binary", "labels": ("for", "against")})
    run = results(PAIRS[:20], question=two)
    (table,) = subgroup_tables(run, {f"m{number}": ("a",) for number in range(12)})
    assert (table.label, tuple(table.groups[0].shares), table.n) == ("for", SHARES, 20)
    assert [(g.name, g.n, g.harmful) for g in table.groups] == [("a", 12, 12), (NONE, 8, 0)]
    with pytest.raises(BadRequest, match="asked no question"):
        subgroup_tables(replace(run, manifest=None), {})


def noisy_results(rng, wrong):
    """Answers whose probabilities follow the true labels, with gold labels of which some are wrong."""
    labels = QUESTION.labels
    true = [labels[place % 3] for place in range(150)]
    gold = ["against" if number in wrong else label for number, label in enumerate(true)]
    judged = []
    for number, (label, gold_label) in enumerate(zip(true, gold, strict=True)):
        others = [label_ for label_ in labels if label_ != label]
        share = rng.uniform(0.0, 0.2, 2)
        scores = {label: float(1 - share.sum()), **dict(zip(others, map(float, share), strict=True))}
        answer = TaskAnswer(labels=(label,), scores=scores)
        prediction = Prediction(meme=f"m{number}", outcome=Outcome.ANSWERED, said={"stance": answer})
        judged.append(Judged(meme(number, gold_label), prediction))
    return replace(results(PAIRS), judged=tuple(judged))


def test_planted_wrong_labels_of_a_task_are_found_per_label():
    pytest.importorskip("cleanlab")
    wrong = {0, 3, 9, 12, 21, 30}  # all of them are truly "for"
    rng = np.random.default_rng(4)
    found, too_few = find_task_noise([noisy_results(rng, wrong), noisy_results(rng, wrong)])
    against = found["against"]
    # Confident learning estimates the number of wrong labels, and lists no more than that.
    for noisy, has in ((against.noisy, True), (found["for"].noisy, False)):
        assert len(noisy) >= 4 and {wrong_label.id for wrong_label in noisy} <= {f"m{number}" for number in wrong}
        assert {wrong_label.harmful for wrong_label in noisy} == {has}
    assert found["neither"].noisy == () and too_few == []
    section = noise_section(against, "d, test", 3, label="against")
    assert section.title == "Labels to look at, against: d, test" and section.rows[0][2] == "probability of against"
    assert len(section.rows) == 4 and section.rows[1][1] == "against"
    with pytest.raises(BadRequest, match="ask for them with --odds"):
        find_task_noise([results(PAIRS)])
    with pytest.raises(BadRequest, match="disagree on the gold label of m0"):
        find_task_noise([noisy_results(rng, wrong), noisy_results(rng, set())])
    few = replace(noisy_results(rng, wrong), judged=noisy_results(rng, wrong).judged[:30])
    with pytest.raises(BadRequest, match="No label of stance has enough memes"):
        find_task_noise([few])


def test_report_compares_runs_on_the_memes_they_share():
    first = results(PAIRS, name="first")
    part = replace(
        results(PAIRS, name="part", question=QUESTION.model_copy(update={"shots": 2})), judged=first.judged[:9]
    )
    apart = replace(results(PAIRS, name="apart", question=QUESTION.model_copy(update={"shots": 4})))
    others = tuple(
        Judged(judged.meme.model_copy(update={"id": f"x{judged.meme.id}"}), judged.prediction)
        for judged in apart.judged
    )
    sections = {section.key: section for section in sections_of(gather([first, part, replace(apart, judged=others)]))}
    assert sections["group-1-stance-choice"].notes == ("The runs did not judge the same memes.",)
    _, *compared = sections["group-1-stance-compared"].rows
    assert [row[:2] for row in compared] == [("part", "9")], "a run on other memes is not compared"
    # The official metric needs probabilities, which these runs lack.
    ranked = [QUESTION.model_copy(update={"official": "auroc", "shots": shots}) for shots in (0, 2)]
    sections = {one.key: one for one in sections_of(gather([results(PAIRS, question=one) for one in ranked]))}
    assert "auroc has no value" in sections["group-1-stance-choice"].notes[0]
