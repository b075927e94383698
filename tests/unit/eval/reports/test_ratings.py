"""Tests of rating sheets: blind, complete and read back; agreement matches other implementations; planted scores are
recovered.
"""

import csv
import itertools
import json
import random
import re
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score
from statsmodels.stats.inter_rater import aggregate_raters, fleiss_kappa

from court.errors import BadRequest
from eval.arena.agreement import HumanVerdict, human_agreement
from eval.arena.events import Judged
from eval.arena.folder import read_lines
from eval.arena.rating import KINDS, measures_by_round, plateau, ratings_by_round
from eval.probe.folder import MARK
from eval.reports.ratings import (
    KeyEntry,
    RatedItem,
    Rating,
    SheetKey,
    SheetKind,
    SheetRatings,
    draw_items,
    read_sheet,
    summarise,
    weighted_kappa,
    write_sheet,
)
from eval.scores.annotators import alpha
from eval.scores.measure import Figure
from retrieval.library.sources import NOT_FOR_LIBRARIES
from tests.support.arena_world import STRENGTHS, Arena, output_of
from tests.support.probing import TEXTS, ProbeWorld, a_plan, probed, write_data_set

# Formulas


def rated(scores, origins=None, repeats=None):
    """Ratings by one criterion, from triples of item, rater and score."""
    names = dict.fromkeys([*(item for item, _, _ in scores), *(origins or {}), *(repeats or {}).values()])
    entries = {
        name: KeyEntry(repeat_of=(repeats or {}).get(name, ""), origin=(origins or {}).get(name, {})) for name in names
    }
    ratings = tuple(Rating(item=item, who=who, criterion="c", score=score) for item, who, score in scores)
    return SheetRatings(SheetKey(what="guidelines", seed=0, criteria={"c": (1, 10)}, items=entries), ratings)


def summary_of(scores, **about):
    (found,) = summarise(rated(scores, **about))
    return SimpleNamespace(**found)


def test_kappas_and_means_match_other_implementations():
    rng = np.random.default_rng(3)
    truth = rng.integers(1, 4, 40)
    table = np.clip(truth[:, None] + rng.integers(-1, 2, (40, 3)), 1, 3)
    scores = [(f"i{n}", f"p{who}", score) for n, row in enumerate(table.tolist()) for who, score in enumerate(row)]
    found = summary_of(scores)
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
    assert (
        weighted_kappa([(1, 1), (1, 1)]) is None is weighted_kappa([]) is alpha([[2, 2], [2, 2]]) is alpha([[1], [2]])
    )
    # One minus the mean squared difference over that of all pairs, by hand: 1/2 over 14/4. The score 2 does not occur.
    assert weighted_kappa([(1, 1), (4, 3)]) == pytest.approx(1 - (1 / 2) / (14 / 4))


def test_repeated_items_count_only_towards_self_agreement():
    scores = [("a", "p", 1), ("b", "p", 3), ("c", "p", 3), ("a2", "p", 1), ("b2", "p", 2)]
    repeats = {"a2": "a", "b2": "b"}
    found = summary_of([*scores, ("a", "q", 1), ("b", "q", 3), ("a2", "q", 1)], repeats=repeats)
    assert found.items == 3 and found.mean.value == pytest.approx((1 + 3 + 3 + 1 + 3) / 5)
    assert (found.repeated, found.alike) == (3, pytest.approx(2 / 3))
    assert summarise(rated([("a2", "p", 1)], repeats=repeats)) == []


# The sheet


def a_kind(**criteria):
    scales = (criteria or {"c": ("?", 3)}).items()
    return SheetKind({key: {"question": words, "low": 1, "high": high} for key, (words, high) in scales}, lambda _: ())


def some_items(count, memes=50):
    return [RatedItem((("text", f"text {n}"),), {"meme": f"m{n % memes}", "number": n}) for n in range(count)]


def test_sheet_shows_every_item_once_and_some_twice_in_random_order(tmp_path):
    def laid_out(count, seed):
        return write_sheet(tmp_path / "s", "guidelines", a_kind(), some_items(count), seed=seed)[1].items

    items = laid_out(50, 1)
    assert len(items) == 55
    numbers = [entry.origin["number"] for entry in items.values()]
    assert sorted(set(numbers)) == list(range(50)) and numbers != sorted(numbers)
    repeats = {name: entry for name, entry in items.items() if entry.repeat_of}
    assert len(repeats) == 5
    for name, entry in repeats.items():
        first = items[entry.repeat_of]
        assert first.origin == entry.origin and entry.repeat_of < name and not first.repeat_of
    assert laid_out(50, 1) == items != laid_out(50, 2)
    assert len(laid_out(1, 0)) == 1 and len(laid_out(10, 0)) == 11


def test_items_are_drawn_of_different_memes_and_evenly():
    drawn = draw_items(some_items(40, memes=10), 10, seed=0)
    assert len({item.origin["meme"] for item in drawn}) == 10 and draw_items(drawn, 10, seed=0) != drawn
    assert len(draw_items(some_items(40, memes=10), 100, seed=0)) == 40
    uneven = [RatedItem((("t", ""),), {"meme": f"m{n}", "agent": int(n < 4)}) for n in range(30)]
    agents = [item.origin["agent"] for item in draw_items(uneven, 20, seed=1, evenly="agent")]
    assert sorted(agents) == [0] * 4 + [1] * 4
    with pytest.raises(BadRequest, match="nothing of that kind"):
        draw_items([], 1, seed=0)


def test_rating_files_hide_the_origin_of_each_item(tmp_path):
    kind = a_kind(soundness=("Is it right? <b>", 3), score=("How good?", 10))
    items = [RatedItem((("text", "<script>evil()</script>"),), {"meme": "secret-1"})] * 3
    stem = tmp_path / "deep" / "s"
    files, _ = write_sheet(stem, "guidelines", kind, items, seed=0, pictures={"secret-1": (b"jpeg",)}.get)
    rows, table, project, key = files
    assert [path.name for path in files] == ["s.jsonl", "s.csv", "s.label-studio.xml", "s.key.json"]
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
    assert SheetKey.model_validate_json(key.read_bytes()).criteria == {"soundness": (1, 3), "score": (1, 10)}
    for path in (tmp_path / "gone", rows):
        with pytest.raises(BadRequest, match="key"):
            read_sheet(path, [], {})


# Guidelines


@pytest.fixture(scope="module")
def finished_arena(tmp_path_factory):
    arena = Arena(tmp_path_factory.mktemp("rated"), memes=8)
    arena.hold()
    return arena


def key_of(path):
    return SheetKey.model_validate_json(path.read_bytes())


def test_guidelines_of_every_round_are_drawn_from_different_memes(finished_arena, tmp_path):
    every = [item.origin for item in KINDS["guidelines"].items(finished_arena.root)]
    assert len(every) == 8 * 3 * 5 and {one["round"] for one in every} == {0, 1, 2, 3, 4}
    assert [one["round"] for one in every if one["last"]] == [4] * 24

    def drawn(*options, code=0):
        sheet = ("--sheet", tmp_path / "g", "--out", finished_arena.root)
        output = output_of("arena", "rate", *sheet, *options, code=code)
        return output if code else [one.origin for one in key_of(tmp_path / "g.key.json").items.values()]

    by_round = {}
    for origin in drawn("--rounds", "0-4", "--count", 20):
        by_round.setdefault(origin["round"], set()).add(origin["meme"])
    assert {number: len(memes) for number, memes in by_round.items()} == dict.fromkeys(range(5), 4)
    last = drawn("--count", 50)
    assert len(last) == 24 + 2 and all(origin["last"] for origin in last)
    assert "nothing of that kind" in drawn("--rounds", "9", code=1)


def test_planted_scores_are_recovered_and_the_plateau_is_found(finished_arena, tmp_path):
    """Raters prefer each round to the one before until the second; the report shows it although the sheet hides the
    rounds.
    """
    sheet = tmp_path / "rate.jsonl"
    rate = ("arena", "rate", "--out", finished_arena.root)
    report = output_of(*rate, "--rounds", "0-4", "--count", 40, "--sheet", sheet)
    assert "44 items, 4 of them a second time" in report and "is not for the raters" in report
    key = key_of(tmp_path / "rate.key.json")
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
    arguments = (*rate, "--key", tmp_path / "rate.key.json", *files)
    figures = json.loads(output_of(*arguments, "--json"))
    means = [round_figures["mean"]["value"] for round_figures in figures["by_round"]]
    assert means == sorted(means[:3]) + means[3:] and means[0] < 1.2 < 1.9 < means[1] < 2.1 < 2.8 < means[2]
    assert figures["plateau"] == 2
    soundness = next(rating for rating in figures["ratings"] if rating["criterion"] == "soundness")
    assert soundness["items"] == 40 and soundness["raters"] == 3 and soundness["repeated"] == 12
    assert min(soundness["cohen"], soundness["alpha"], soundness["fleiss"]["value"]) > 0.6
    report = output_of(*arguments, "--html", tmp_path / "page.html")
    assert "fusion_rounds = 2" in report and "2.50" in report and "style=" not in (tmp_path / "page.html").read_text()


def test_no_plateau_is_found_while_the_last_round_still_gains():
    def rounds(*means):
        return [{"round": n, "mean": Figure(mean, mean - 0.1, mean + 0.1)} for n, mean in enumerate(means)]

    assert plateau(rounds(1, 2, 2.5, 2.55, 2.5)) == 2
    assert plateau(rounds(1, 2, 3)) is None and plateau(rounds(2)) is None and plateau([]) is None
    assert plateau(rounds(2, 2, 2)) == 0 and plateau(rounds(2, 2, 3, 3)) == 2
    # Small steps add up: no single one is worth its calls, but all of them together are.
    assert plateau(rounds(2, 2.06, 2.12, 2.18, 2.18)) == 2 and plateau(rounds(3, 2, 2)) == 0


def test_contexts_are_shown_in_random_order(finished_arena, tmp_path):
    sheet = ("--what", "contexts", "--count", 8, "--sheet", tmp_path / "c")
    output_of("arena", "rate", "--out", finished_arena.root, *sheet)
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
    output_of("arena", "rate", "--out", out, "--what", "battles", "--count", 60, "--sheet", sheet)
    key = key_of(tmp_path / "b.key.json")
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
    rated_by = ("--ratings", tmp_path / "p.jsonl", "--key", tmp_path / "b.key.json", "--json")
    shown = output_of("arena", "rate", "--out", out, *rated_by)
    people = json.loads(shown[shown.index("{") :])["people"]
    battles = {(o["meme"], o["task"], *sorted((o["a"], o["b"]))) for o in origins.values()}
    hits = []
    for event in finished_arena.folder.events():
        if isinstance(event, Judged) and (battle := (event.meme, event.task, *sorted((event.a, event.b)))) in battles:
            stronger = max(battle[2:], key=STRENGTHS.get)
            won = {1.0: event.a, 0.5: None, 0.0: event.b}[event.verdicts["overall"].score]
            hits.append(won == stronger)
    assert people["battles"] == len(hits) == 60 and people["accuracy"]["value"] == pytest.approx(np.mean(hits))
    assert people["accuracy"]["low"] < np.mean(hits) < people["accuracy"]["high"]
    assert sum(one["kappa"]["n"] * one["accuracy"]["value"] for one in people["judges"]) == pytest.approx(sum(hits))
    # The arena itself reads what the sheet makes: the same figures, and repeats count once.
    verdicts = read_lines(tmp_path / "b.humans.jsonl", HumanVerdict)
    assert (
        len(verdicts) == 60 < len(rows) and human_agreement(finished_arena.folder.events(), verdicts)["battles"] == 60
    )
    shown = output_of("arena", "--report", "--out", out, "--humans", tmp_path / "b.humans.jsonl")
    assert "Panel and people" in shown and f"{100 * np.mean(hits):.1f} [" in shown


def test_filled_tables_and_exports_of_label_studio_are_read(tmp_path):
    kind = a_kind(soundness=("Is it right?", 3), score=("How good?", 10))
    items = [RatedItem((("kind of harm", "=cmd()"),), {"meme": f"m{number}"}) for number in range(2)]
    (_, table, _, path), _ = write_sheet(tmp_path / "s", "guidelines", kind, items, seed=0)
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert {row["kind_of_harm"] for row in rows} == {"'=cmd()"}

    def filled(who, **scores):
        with (tmp_path / "filled.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, [*rows[0], "annotator"])
            writer.writeheader()
            writer.writerows(row | {who: "p"} | scores for row in rows)
        return read_sheet(path, [tmp_path / "filled.csv"], KINDS).ratings

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


def test_measures_by_round_need_no_ratings():
    texts = (("Tea is hot.", "People drink it"), ("Tea is cold.", "people drink it"))
    start, end = measures_by_round(
        [
            RatedItem((("background", one), ("reasoning", other)), {"meme": "m", "task": 0, "round": number})
            for number, (one, other) in enumerate(texts)
        ]
    )
    assert (start["words"], start["kept"], end["words"]) == (6, None, 6)
    assert end["kept"] == pytest.approx(5 / 7)  # of tea, is, hot, cold, people, drink, it: all but hot and cold


def test_bad_options_and_files_are_named(finished_arena, tmp_path):
    assert "By round of the fusion" in output_of("arena", "rate", "--out", finished_arena.root)  # needs no raters
    rate, ratings = ("arena", "rate", "--out", finished_arena.root), tmp_path / "r.jsonl"
    assert "takes a range" in output_of(*rate, "--rounds", "4-1", "--sheet", "x", code=2)
    output_of(*rate, "--sheet", tmp_path / "s")
    arguments = (*rate, "--ratings", ratings)
    assert "needs --key" in output_of(*arguments, code=2)
    for line, message in (
        ('{"item": "r01"}', "line 1: who: Field required"),
        ('{"item": "zz", "who": "p", "criterion": "soundness", "score": 1}', "no item zz"),
        ('{"item": "r01", "who": "p", "criterion": "soundness", "score": 4}', "a score of 4"),
        ("", "no rating in these files"),
    ):
        ratings.write_text(line + "\n")
        assert message in " ".join(output_of(*arguments, "--key", tmp_path / "s.key.json", code=1).split())


@pytest.mark.parametrize("rounds", [1, 3])
def test_number_of_merged_answers_follows_the_fusion_rounds_setting(tmp_path, rounds):
    arena = Arena(tmp_path, memes=2, fusion_rounds=rounds)
    arena.hold()
    texts = [item.origin for item in KINDS["guidelines"].items(arena.root)]
    assert {one["round"] for one in texts if one["last"]} == {rounds} and len(texts) == 2 * 3 * (rounds + 1)
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
        output_of("probe", "rate", "--out", a_probe.root, "--what", sheet_kind, "--sheet", tmp_path / sheet_kind)
        rows = [json.loads(line) for line in (tmp_path / f"{sheet_kind}.jsonl").read_text().splitlines()]
        assert all(set(row["parts"]) == parts for row in rows)
        assert all((row.get(NOT_FOR_LIBRARIES) == MARK) == (sheet_kind == "rewritten") for row in rows)
        shown = {tmp_path / path for row in rows for path in row["pictures"]}
        assert shown and all(path.read_bytes()[:2] == b"\xff\xd8" for path in shown)
        assert "data:image" not in (tmp_path / f"{sheet_kind}.csv").read_text()
        key = key_of(tmp_path / f"{sheet_kind}.key.json")
        with (tmp_path / f"{sheet_kind}-rated.jsonl").open("w") as file:
            for row, (criterion, (low, high)) in itertools.product(rows, key.criteria.items()):
                agent = key.items[row["item"]].origin.get("agent")
                score = high if agent is None else agent
                one = {"item": row["item"], "who": "p", "criterion": criterion, "score": max(low, score)}
                file.write(json.dumps(one) + "\n")
        reports[sheet_kind] = output_of(
            *("probe", "rate", "--out", a_probe.root, "--ratings", tmp_path / f"{sheet_kind}-rated.jsonl"),
            *("--key", tmp_path / f"{sheet_kind}.key.json", "--threshold", 6),
        )
    # People who rate as the agents did agree with them fully.
    assert re.search(r"Miners and people’s majority +16 +1.000 +1.000", reports["mine"])
    assert re.search(r"Scorer +7.88 +37.50", reports["scores"]) and re.search(r"people +7.88 +37.50", reports["scores"])
    assert "agree in 1.000 of 8 cases, κ 1.000" in reports["scores"]
    assert "Beside people" not in reports["references"] + reports["rewritten"] and "2.92" in reports["references"]
    assert not any(text in "".join(reports.values()) for text, _ in TEXTS)
    assert "Draw a sheet" in output_of("probe", "rate", "--out", a_probe.root, code=2)


def test_ratings_by_round_ignore_repeated_items_and_the_last_rating_counts(tmp_path):
    origins = {f"i{n}": {"meme": f"m{n}", "round": n % 2} for n in range(4)} | {"i4": {"meme": "m0", "round": 0}}
    scores = [("i0", "p", 2), ("i1", "p", 3), ("i2", "p", 2), ("i3", "p", 3), ("i4", "p", 1)]
    found = ratings_by_round(rated(scores, origins, {"i4": "i0"}))
    assert [(one["round"], one["items"], one["mean"].value) for one in found] == [(0, 2, 2), (1, 2, 3)]
    (tmp_path / "k.key.json").write_text(rated(scores, origins).key.model_dump_json())
    line = '{"item": "i0", "who": "p", "criterion": "c", "score": 1}\n'
    (tmp_path / "r.jsonl").write_text(line + line.replace("1}", "2}"))
    (one,) = read_sheet(tmp_path / "k.key.json", [tmp_path / "r.jsonl"], KINDS).ratings
    assert one.score == 2


def test_key_written_by_another_command_is_refused(finished_arena, a_probe, tmp_path):
    output_of("probe", "rate", "--out", a_probe.root, "--what", "mine", "--sheet", tmp_path / "mine")
    rated_by = ("--ratings", tmp_path / "r", "--key", tmp_path / "mine.key.json")
    assert "another command's" in output_of("arena", "rate", "--out", finished_arena.root, *rated_by, code=1)
