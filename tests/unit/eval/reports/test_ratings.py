"""Tests of rating sheets: blind, complete and read back; agreement matches other implementations; planted scores are
recovered.
"""

import csv
import itertools
import json
import random
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.metrics import cohen_kappa_score
from statsmodels.stats.inter_rater import aggregate_raters, fleiss_kappa

from court.errors import BadRequest
from eval.arena.agreement import HumanVerdict, human_agreement
from eval.arena.events import Judged
from eval.arena.folder import read_lines
from eval.arena.rating import (
    GuidelineText,
    RoundRatings,
    guideline_items,
    guideline_texts,
    measures_by_round,
    plateau,
    ratings_by_round,
)
from eval.cli import cli
from eval.probe.folder import MARK
from eval.reports.ratings import (
    Criterion,
    RatedItem,
    Rating,
    lay_out,
    read_key,
    read_ratings,
    summarise,
    weighted_kappa,
    write_sheet,
)
from eval.scores.annotators import alpha
from eval.scores.measure import Figure
from retrieval.library.sources import NOT_FOR_LIBRARIES
from tests.support.arena_world import STRENGTHS, Arena
from tests.support.probing import TEXTS, ProbeWorld, a_plan, probed, write_data_set

# Formulas


def test_alpha_matches_krippendorffs_published_example():
    """Four observers, twelve units, with gaps: 0.815 for ordered scores (Krippendorff 2011, section D)."""
    gap = None
    observers = (
        (1, 2, 3, 3, 2, 1, 4, 1, 2, gap, gap, gap),
        (1, 2, 3, 3, 2, 2, 4, 1, 2, 5, gap, 3),
        (gap, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, gap),
        (1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, gap),
    )
    units = [[score for score in unit if score is not None] for unit in zip(*observers, strict=True)]
    assert alpha(units) == pytest.approx(0.815, abs=5e-4)
    assert alpha([[1, 1], [2, 2], [3, 3]]) == 1
    assert alpha([[2, 2], [2, 2]]) is None is alpha([[1], [2]])


def ratings_from(table):
    """Ratings of items by raters, from rows of scores."""
    return [
        Rating(item=f"i{item}", who=f"p{rater}", criterion="c", score=score)
        for item, row in enumerate(table)
        for rater, score in enumerate(row)
    ]


def test_kappas_and_means_match_other_implementations():
    rng = np.random.default_rng(3)
    truth = rng.integers(1, 4, 40)
    table = np.clip(truth[:, None] + rng.integers(-1, 2, (40, 3)), 1, 3)
    (found,) = summarise(ratings_from(table.tolist()), {})
    assert (found.items, found.raters, found.pairs) == (40, 3, 3)
    assert found.mean.value == pytest.approx(table.mean()) and found.mean.low < found.mean.value < found.mean.high
    assert found.fleiss.value == pytest.approx(fleiss_kappa(aggregate_raters(table)[0]))

    # Quadratic weights by hand, from the definition.
    def quadratic(one, other):
        observed = np.mean((one - other) ** 2)
        expected = np.mean([(a - b) ** 2 for a in one for b in other])
        return 1 - observed / expected

    pairs = [quadratic(table[:, a], table[:, b]) for a, b in itertools.combinations(range(3), 2)]
    assert found.cohen == pytest.approx(np.mean(pairs))
    both = list(zip(table[:, 0].tolist(), table[:, 1].tolist(), strict=True))
    assert weighted_kappa(both) == pytest.approx(cohen_kappa_score(*zip(*both, strict=True), weights="quadratic"))
    assert weighted_kappa([(1, 1), (1, 1)]) is None is weighted_kappa([])
    # One minus the mean squared difference over that of all pairs, by hand: 1/2 over 14/4. The score 2 does not occur.
    assert weighted_kappa([(1, 1), (4, 3)]) == pytest.approx(1 - (1 / 2) / (14 / 4))


def test_repeated_items_count_only_towards_self_agreement():
    ratings = [
        Rating(item=item, who=rater, criterion="c", score=score)
        for item, rater, score in (
            *(("a", "p", 1), ("b", "p", 3), ("c", "p", 2), ("a2", "p", 1), ("b2", "p", 2)),
            *(("a", "q", 1), ("b", "q", 3), ("a2", "q", 1)),
            ("c", "p", 3),  # rated again: the last rating counts
        )
    ]
    (found,) = summarise(ratings, {"a2": "a", "b2": "b"})
    assert found.items == 3 and found.mean.value == pytest.approx((1 + 3 + 3 + 1 + 3) / 5)
    assert (found.self_agreement.n, found.self_agreement.alike) == (3, pytest.approx(2 / 3))
    assert summarise([ratings[3]], {"a2": "a"}) == ()


# The sheet


def some_items(count):
    return [RatedItem((("text", f"text {number}"),), {"number": number}) for number in range(count)]


def test_sheet_shows_every_item_once_and_some_twice_in_random_order():
    lines = lay_out(some_items(50), seed=1)
    assert len(lines) == 55 and len({line.id for line in lines}) == 55
    numbers = [line.item.origin["number"] for line in lines]
    assert sorted(set(numbers)) == list(range(50)) and numbers != sorted(numbers)
    repeats = [line for line in lines if line.repeat_of]
    assert len(repeats) == 5
    by_id = {line.id: line for line in lines}
    for line in repeats:
        first = by_id[line.repeat_of]
        assert first.item is line.item and lines.index(first) < lines.index(line) and not first.repeat_of
    assert lay_out(some_items(50), seed=1) == lines != lay_out(some_items(50), seed=2)
    assert len(lay_out(some_items(1), seed=0)) == 1 and len(lay_out(some_items(3), seed=0, repeats=1.0)) == 5


def test_rating_files_hide_the_origin_of_each_item(tmp_path):
    criteria = (Criterion("soundness", "Is it right? <b>"), Criterion("score", "How good?", 1, 10))
    items = [RatedItem((("text", "<script>evil()</script>"),), {"meme": "secret-1"}, pictures=(b"jpeg",))] * 3
    rows, table, project, key = write_sheet(
        tmp_path / "deep" / "s", "guidelines", lay_out(items, seed=0), criteria, seed=0
    )
    assert [path.name for path in (rows, table, project, key)] == [
        *("s.jsonl", "s.csv", "s.label-studio.xml", "s.key.json")
    ]
    first = json.loads(rows.read_text().splitlines()[0])
    assert first["parts"] == {"text": "<script>evil()</script>"} and NOT_FOR_LIBRARIES not in first
    assert first["criteria"]["score"] == {"question": "How good?", "low": 1, "high": 10}
    assert "secret-1" not in rows.read_text() + table.read_text() and "secret-1" in key.read_text()
    # Pictures are named by path, stored once, and blurred in the project until they are clicked.
    (picture,) = (tmp_path / "deep" / "s.pictures").iterdir()
    assert picture.read_bytes() == b"jpeg" and first["pictures"] == [f"s.pictures/{picture.name}"]
    reader = csv.DictReader(table.read_text().splitlines())
    assert {row["picture_1"] for row in reader} == {f"/data/local-files/?d=s.pictures/{picture.name}"}
    view, columns = ElementTree.fromstring(project.read_text()), reader.fieldnames
    shown = {one.get("value")[1:] for one in view.iter() if one.tag in ("Image", "Text")}
    assert shown == {"picture_1", "text"} <= {*columns}
    assert view.find(".//View[@className='veiled']/Image") is not None and "blur(" in view.find("Style").text
    assert {one.get("name"): len(one) for one in view.iter("Choices")} == {"soundness": 3, "score": 10}
    assert read_key(key).criteria == {"soundness": (1, 3), "score": (1, 10)}
    for path in (tmp_path / "gone", rows):
        with pytest.raises(BadRequest, match="key"):
            read_key(path)


# Guidelines


@pytest.fixture(scope="module")
def finished_arena(tmp_path_factory):
    arena = Arena(tmp_path_factory.mktemp("rated"), memes=8)
    arena.hold()
    return arena


def rate(*arguments, code=0):
    ran = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert ran.exit_code == code, ran.output
    return ran.output


def test_guidelines_of_every_round_are_drawn_from_different_memes(finished_arena):
    texts = guideline_texts(finished_arena.folder.events())
    assert len(texts) == 8 * 3 * 5 and {text.round for text in texts} == {0, 1, 2, 3, 4}
    assert [text.round for text in texts if text.last] == [4] * 24
    starts = {text.reasoning for text in texts if text.round == 0}
    assert all(reasoning.startswith("quality=") for reasoning in starts)
    items = guideline_items(texts, rounds=range(5), per_round=4, seed=0)
    by_round = {}
    for item in items:
        by_round.setdefault(item.origin["round"], []).append(item.origin["meme"])
    assert {number: len(set(memes)) for number, memes in by_round.items()} == dict.fromkeys(range(5), 4)
    last = guideline_items(texts, rounds=None, per_round=50, seed=0)
    assert len(last) == 24 and all(item.origin["last"] for item in last)
    with pytest.raises(BadRequest, match="no guideline of these rounds"):
        guideline_items(texts, rounds=[9], per_round=1, seed=0)


def test_planted_scores_are_recovered_and_the_plateau_is_found(finished_arena, tmp_path):
    """Raters prefer each round to the one before until the second; the report shows it although the sheet hides the
    rounds.
    """
    sheet = tmp_path / "rate.jsonl"
    report = rate("arena", "rate", "--out", finished_arena.root, "--rounds", "0-4", "--per-round", 8, "--sheet", sheet)
    assert "44 items, 4 of them a second time" in report and "is not for the raters" in report
    key = read_key(tmp_path / "rate.key.json")
    rng = random.Random(0)
    for rater in ("p", "q", "r"):
        with (tmp_path / f"{rater}.jsonl").open("w") as file:
            for row in map(json.loads, sheet.read_text().splitlines()):
                for criterion in row["criteria"]:
                    number = key.items[row["item"]].origin["round"]
                    score = min(3, 1 + number) if rng.random() < 0.9 else 2
                    one = {"item": row["item"], "who": rater, "criterion": criterion, "score": score}
                    file.write(json.dumps(one) + "\n")
    files = [part for rater in "pqr" for part in ("--ratings", tmp_path / f"{rater}.jsonl")]
    arguments = ["arena", "rate", "--out", finished_arena.root, "--key", tmp_path / "rate.key.json", *files]
    figures = json.loads(rate(*arguments, "--json"))
    means = [round_figures["mean"]["value"] for round_figures in figures["by_round"]]
    assert means == sorted(means[:3]) + means[3:] and means[0] < 1.2 < 1.9 < means[1] < 2.1 < 2.8 < means[2]
    assert figures["plateau"] == 2
    soundness = next(rating for rating in figures["ratings"] if rating["criterion"] == "soundness")
    assert soundness["items"] == 40 and soundness["raters"] == 3 and soundness["self_agreement"]["n"] == 12
    assert min(soundness["cohen"], soundness["alpha"], soundness["fleiss"]["value"]) > 0.6
    report = rate(*arguments, "--html", tmp_path / "page.html")
    assert "fusion_rounds = 2" in report and "2.50" in report and "style=" not in (tmp_path / "page.html").read_text()


def test_no_plateau_is_found_while_the_last_round_still_gains():
    def rounds(*means):
        return [RoundRatings(n, 10, Figure(mean, mean - 0.1, mean + 0.1)) for n, mean in enumerate(means)]

    assert plateau(rounds(1, 2, 2.5, 2.55, 2.5)) == 2
    assert plateau(rounds(1, 2, 3)) is None and plateau(rounds(2)) is None and plateau([]) is None
    assert plateau(rounds(2, 2, 2)) == 0 and plateau(rounds(2, 2, 3, 3)) == 2
    # Small steps add up: no single one is worth its calls, but all of them together are.
    assert plateau(rounds(2, 2.06, 2.12, 2.18, 2.18)) == 2 and plateau(rounds(3, 2, 2)) == 0


def test_measures_by_round_need_no_ratings():
    texts = [
        GuidelineText("m", 0, 0, background="Tea is hot.", reasoning="People drink it"),
        GuidelineText("m", 0, 1, background="Tea is cold.", reasoning="people drink it", last=True),
    ]
    start, end = measures_by_round(texts)
    assert (start.words, start.kept, end.words) == (6, None, 6)
    assert end.kept == pytest.approx(5 / 7)  # of tea, is, hot, cold, people, drink, it: all but hot and cold


def test_contexts_are_shown_in_random_order(finished_arena, tmp_path):
    rate("arena", "rate", "--out", finished_arena.root, "--what", "contexts", "--count", 8, "--sheet", tmp_path / "c")
    rows = [json.loads(line) for line in (tmp_path / "c.jsonl").read_text().splitlines()]
    assert all(len(row["parts"]) == 6 and "context_diversity" in row["criteria"] for row in rows)
    kinds = {re.search("of (high|moderate|unrelated)", row["parts"]["person 1"])[1] for row in rows}
    assert len(kinds) > 1
    for row in rows:  # each question stands beside the person that asks it
        for number in "123":
            kind = re.search("of (high|moderate|unrelated)", row["parts"][f"person {number}"])[1]
            assert f"asks one of {kind} background" in row["parts"][f"question {number}"]


def test_battles_judged_by_people_are_compared_with_the_judges(finished_arena, tmp_path):
    """A person who always prefers the stronger model agrees with judges as often as they do."""
    out, sheet = finished_arena.root, tmp_path / "b"
    rate("arena", "rate", "--out", out, "--what", "battles", "--count", 60, "--sheet", sheet)
    key = read_key(tmp_path / "b.key.json")
    rows = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    assert all(set(row["parts"]) == {"question", "A", "B"} and set(row["criteria"]) == {"better"} for row in rows)
    origins = {name: entry.origin for name, entry in key.items.items()}
    for row in rows:
        for letter in "ab":
            assert f"voice={origins[row['item']][letter]}" in row["parts"][letter.upper()]
    # Neither order of the two tells who wrote what.
    assert 0.3 < np.mean([one["a"] < one["b"] for one in origins.values()]) < 0.7
    scores = {name: 1 if STRENGTHS[one["a"]] > STRENGTHS[one["b"]] else 3 for name, one in origins.items()}
    lines = ({"item": name, "who": "p", "criterion": "better", "score": score} for name, score in scores.items())
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    arguments = ("arena", "rate", "--out", out, "--ratings", tmp_path / "p.jsonl", "--key", tmp_path / "b.key.json")
    ran = CliRunner().invoke(cli, [*map(str, arguments), "--json"])
    people = json.loads(ran.stdout)["people"]
    battles = {(o["meme"], o["task"], *sorted((o["a"], o["b"]))) for o in origins.values()}
    hits = []
    for event in finished_arena.folder.events():
        if isinstance(event, Judged) and (battle := (event.meme, event.task, *sorted((event.a, event.b)))) in battles:
            stronger = max(battle[2:], key=STRENGTHS.get)
            won = {1.0: event.a, 0.5: None, 0.0: event.b}[event.verdicts["overall"].score]
            hits.append(won == stronger)
    assert people["battles"] == len(hits) == 60 and people["accuracy"]["value"] == pytest.approx(np.mean(hits))
    assert people["accuracy"]["low"] < np.mean(hits) < people["accuracy"]["high"]
    assert sum(one["n"] * one["accuracy"]["value"] for one in people["judges"]) == pytest.approx(sum(hits))
    # The arena itself reads what the sheet makes: the same figures, and repeats count once.
    verdicts = read_lines(tmp_path / "b.humans.jsonl", HumanVerdict)
    assert len(verdicts) == 60 < len(rows) and human_agreement(finished_arena.folder.events(), verdicts).battles == 60
    shown = rate("arena", "--report", "--out", out, "--humans", tmp_path / "b.humans.jsonl")
    assert "Panel and people" in shown and f"{100 * np.mean(hits):.1f} [" in shown


def test_filled_tables_and_exports_of_label_studio_are_read(tmp_path):
    criteria = (Criterion("soundness", "Is it right?"), Criterion("score", "How good?", 1, 10))
    items = [RatedItem((("kind of harm", "=cmd()"),), {"n": number}) for number in range(2)]
    _, table, _, path = write_sheet(tmp_path / "s", "guidelines", lay_out(items, seed=0, repeats=0), criteria, seed=0)
    key = read_key(path)
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert {row["kind_of_harm"] for row in rows} == {"'=cmd()"}

    def filled(who, **scores):
        with (tmp_path / "filled.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, [*rows[0], "annotator"])
            writer.writeheader()
            writer.writerows(row | {who: "p"} | scores for row in rows)
        return read_ratings([tmp_path / "filled.csv"], key)

    by_hand = filled("who", soundness="2", score="10")
    assert [(one.item, one.criterion, one.score) for one in by_hand] == [
        (row["item"], criterion, score) for row in rows for criterion, score in (("soundness", 2), ("score", 10))
    ]
    assert filled("annotator", soundness="2", score="10") == by_hand
    assert len(filled("who", score="1")) == 2  # a question without an answer is no rating
    with pytest.raises(BadRequest, match="line 2: score"):
        filled("who", soundness="good")
    with pytest.raises(BadRequest, match="score of 11"):
        filled("who", score="11")


def test_free_measures_are_shown_without_ratings_and_bad_files_are_named(finished_arena, tmp_path):
    report = rate("arena", "rate", "--out", finished_arena.root)
    assert "By round of the fusion" in report and "quality=" not in report
    assert "takes a range" in rate(
        "arena", "rate", "--out", finished_arena.root, "--rounds", "4-1", "--sheet", "x", code=2
    )
    rate("arena", "rate", "--out", finished_arena.root, "--sheet", tmp_path / "s")
    ratings = tmp_path / "r.jsonl"
    arguments = ("arena", "rate", "--out", finished_arena.root, "--ratings", ratings)
    assert "needs --key" in rate(*arguments, code=2)
    for line, message in (
        ('{"item": "r01"}', "line 1: who: Field required"),
        ('{"item": "zz", "who": "p", "criterion": "soundness", "score": 1}', "no item zz"),
        ('{"item": "r01", "who": "p", "criterion": "soundness", "score": 4}', "a score of 4"),
        ("", "no rating in these files"),
    ):
        ratings.write_text(line + "\n")
        assert message in " ".join(rate(*arguments, "--key", tmp_path / "s.key.json", code=1).split())


@pytest.mark.parametrize("rounds", [1, 3])
def test_number_of_merged_answers_follows_the_fusion_rounds_setting(tmp_path, rounds):
    arena = Arena(tmp_path, memes=2, fusion_rounds=rounds)
    arena.hold()
    texts = guideline_texts(arena.folder.events())
    assert {text.round for text in texts if text.last} == {rounds} and len(texts) == 2 * 3 * (rounds + 1)
    assert arena.calls_made == 2 * (1 + 3 * (1 + len(STRENGTHS) + rounds + 3))


# The probe


@pytest.fixture(scope="module")
def a_probe(tmp_path_factory):
    data = write_data_set(tmp_path_factory.mktemp("data"))
    return probed(a_plan(tmp_path_factory.mktemp("probe"), data), ProbeWorld())[0]


def test_probe_sheets_show_pictures_and_reports_compare_people_with_agents(a_probe, tmp_path):
    reports = {}
    for sheet_kind, parts in (
        ("mine", {"text", "kind of harm"}),
        ("references", {"text", "asked about", "explanation"}),
        ("scores", {"text", "asked about", "reference", "explanation"}),
        ("rewritten", {"text as it was", "misbelief", "rewritten text"}),
    ):
        rate("probe", "rate", "--out", a_probe.root, "--what", sheet_kind, "--sheet", tmp_path / sheet_kind)
        rows = [json.loads(line) for line in (tmp_path / f"{sheet_kind}.jsonl").read_text().splitlines()]
        assert all(set(row["parts"]) == parts for row in rows)
        assert all((row.get(NOT_FOR_LIBRARIES) == MARK) == (sheet_kind == "rewritten") for row in rows)
        shown = {tmp_path / path for row in rows for path in row["pictures"]}
        assert shown and all(path.read_bytes()[:2] == b"\xff\xd8" for path in shown)
        assert "data:image" not in (tmp_path / f"{sheet_kind}.csv").read_text()
        key = read_key(tmp_path / f"{sheet_kind}.key.json")
        with (tmp_path / f"{sheet_kind}-rated.jsonl").open("w") as file:
            for row, (criterion, (low, high)) in itertools.product(rows, key.criteria.items()):
                agent = key.items[row["item"]].origin.get("agent")
                score = high if agent is None else agent
                one = {"item": row["item"], "who": "p", "criterion": criterion, "score": max(low, score)}
                file.write(json.dumps(one) + "\n")
        reports[sheet_kind] = rate(
            *("probe", "rate", "--out", a_probe.root, "--ratings", tmp_path / f"{sheet_kind}-rated.jsonl"),
            *("--key", tmp_path / f"{sheet_kind}.key.json", "--threshold", 6),
        )
    # People who rate as the agents did agree with them fully.
    assert re.search(r"Miners and people’s majority +16 +1.000 +1.000", reports["mine"])
    assert re.search(r"Scorer +7.88 +37.50", reports["scores"]) and re.search(r"people +7.88 +37.50", reports["scores"])
    assert "agree in 1.000 of 8 cases, κ 1.000" in reports["scores"]
    assert "Beside people" not in reports["references"] + reports["rewritten"] and "2.92" in reports["references"]
    assert not any(text in "".join(reports.values()) for text, _ in TEXTS)
    assert "Draw a sheet" in rate("probe", "rate", "--out", a_probe.root, code=2)


def test_ratings_by_round_ignore_repeated_items(tmp_path):
    items = [RatedItem((("t", str(n)),), {"meme": f"m{n}", "round": n % 2}) for n in range(4)]
    lines = lay_out(items, seed=0, repeats=0.5)
    *_, path = write_sheet(tmp_path / "s", "guidelines", lines, (Criterion("c", "?"),), seed=0)
    key = read_key(path)
    ratings = [
        Rating(item=line.id, who="p", criterion="c", score=1 if line.repeat_of else 2 + line.item.origin["round"])
        for line in lines
    ]
    assert [
        (round_ratings.round, round_ratings.items, round_ratings.mean.value)
        for round_ratings in ratings_by_round(ratings, key)
    ] == [(0, 2, 2), (1, 2, 3)]


def test_key_written_by_another_command_is_refused(finished_arena, a_probe, tmp_path):
    rate("probe", "rate", "--out", a_probe.root, "--what", "mine", "--sheet", tmp_path / "mine")
    arguments = (
        "arena",
        "rate",
        "--out",
        finished_arena.root,
        "--ratings",
        tmp_path / "r",
        "--key",
        tmp_path / "mine.key.json",
    )
    assert "another command's" in rate(*arguments, code=1)
