"""Tests of the report on runs without a browser; tests/browser checks the page as people see it."""

import asyncio
import base64
import dataclasses
import hashlib
import io
import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from PIL import Image

from court.errors import BadRequest
from court.events import Side
from court.transcript import transcript
from eval.cli import cli
from eval.datasets.items import Protocol
from eval.datasets.known import find_card
from eval.reports import figures
from eval.reports.details import memes_by_verdict
from eval.reports.records import read_records
from eval.reports.tasks import gather, sections_of
from eval.runs.results import DOCKET, read_results, runs_below
from eval.scores.courses import rounds_of
from eval.scores.metrics import Bin, VerdictFault, answers_of, task_card
from tests.support.golden import check_figures
from tests.support.judged import H, N, results
from tests.support.paths import GOLDEN
from tests.support.report_page import as_html, as_markdown, as_terminal
from tests.support.report_runs import MARKUP, NOT, SOME, USUAL_MEMES, VERY, ReportedMeme, write_report_run

FEW = 200
"""Resamples: few, because these tests do not depend on their number."""


@pytest.fixture(scope="module")
def usual_run(tmp_path_factory):
    return write_report_run(tmp_path_factory.mktemp("usual") / "run", library=True)


def report_on(*roots):
    return gather([read_results(root) for root in roots], resamples=FEW)


def wrong_in(*roots):
    (group,) = report_on(*roots).groups
    return memes_by_verdict(group.runs)[0]


@pytest.fixture(scope="module")
def page(usual_run):
    return as_html(report_on(usual_run))


class Elements(HTMLParser):
    """All elements of a page with their attributes."""

    def __init__(self, page):
        super().__init__()
        self.all = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.all.append((tag, dict(attributes)))

    def of(self, tag):
        return [attributes for name, attributes in self.all if name == tag]


def texts_of(svg):
    return [
        "".join(element.itertext()) for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("text")
    ]


def with_published(*rows, **changes):
    """The card of Harm-C with other published figures: those that it has change."""
    return {**find_card("harm-c").to_json(), "published": list(rows), **changes}


def test_markdown_report_matches_the_golden_file(tmp_path, request):
    row = {"system": "Nobody's", "year": 2025, "task": "harm", "protocol": "merged", "figures": {"accuracy": 0.5}}
    card_ = with_published({**row, "source": "a paper", "read_in": "a list", "remark": "R | S."})
    markdown = as_markdown(report_on(write_report_run(tmp_path, card=card_)))
    path = GOLDEN / "report.md"
    if request.config.getoption("--write-golden"):
        path.write_text(markdown)
    assert markdown == path.read_text()


def test_figures_match_the_golden_file(usual_run, request):
    ran = CliRunner().invoke(cli, ["report", str(usual_run), "--json"])
    assert ran.exit_code == 0, ran.output
    check_figures(request, "report", json.loads(ran.stdout))


def test_same_runs_give_the_same_bytes(usual_run, page):
    assert as_html(report_on(usual_run)) == page
    assert as_markdown(report_on(usual_run)) == as_markdown(report_on(usual_run))


def test_wrong_verdicts_are_listed_worst_first(usual_run):
    listed = [(wrong.meme.id, wrong.worst) for wrong in wrong_in(usual_run)]
    assert listed == [
        ("m6", VerdictFault.MISSED),
        ("m3", VerdictFault.FALSE_ALARM),
        ("m7", VerdictFault.UNDECIDED),
        ("m8", VerdictFault.FAILED),
    ]


def test_surest_verdicts_come_first_among_equal_faults(tmp_path):
    predictions = [
        ReportedMeme("a", NOT, "harmful", score=0.6),
        ReportedMeme("b", NOT, "harmful", score=0.95),
        ReportedMeme("c", NOT, "harmful"),
    ]
    assert [wrong.meme.id for wrong in wrong_in(write_report_run(tmp_path, predictions))] == ["b", "c", "a"]


def test_memes_dropped_by_the_protocol_are_not_listed_as_wrong(tmp_path):
    predictions = [
        ReportedMeme("a", SOME, "harmless"),
        ReportedMeme("b", VERY, "harmful"),
        ReportedMeme("c", NOT, "harmless"),
    ]
    extreme = write_report_run(tmp_path / "extreme", predictions, protocols=(Protocol.EXTREME,))
    (group,) = report_on(extreme).groups
    wrong, right = memes_by_verdict(group.runs)
    assert wrong == [] and [one.meme.id for one in right] == ["b", "c"], "a dropped meme is in neither"
    assert len(wrong_in(write_report_run(tmp_path / "both", predictions))) == 1


def test_meme_misjudged_by_several_runs_is_listed_once(tmp_path):
    first = write_report_run(
        tmp_path / "a", [ReportedMeme("x", VERY, "harmless"), ReportedMeme("y", NOT, "harmless")], name="first"
    )
    second = write_report_run(
        tmp_path / "b", [ReportedMeme("x", VERY, "harmless"), ReportedMeme("y", NOT, "harmful")], name="second"
    )
    by_id = {wrong.meme.id: wrong for wrong in wrong_in(first, second)}
    assert [verdict.run.label for verdict in by_id["x"].wrong] == ["first", "second"]
    assert [verdict.run.label for verdict in by_id["y"].wrong] == ["second"]
    assert [run.label for run, _ in by_id["y"].right] == ["first"]


@pytest.mark.slow
def test_differences_within_noise_are_described_in_words(tmp_path):
    predictions = [ReportedMeme(f"m{i}", VERY if i % 2 else NOT, "harmful" if i % 2 else "harmless") for i in range(20)]
    wrong = [
        dataclasses.replace(prediction, says="harmless" if prediction.says == "harmful" else "harmful")
        for prediction in predictions
    ]
    slightly = [*predictions[:-1], dataclasses.replace(predictions[-1], says="harmless")]
    mixed = [*wrong[:4], *predictions[4:]]
    names = {"all": predictions, "most": slightly, "mixed": mixed, "none": wrong}
    roots = [
        write_report_run(tmp_path / name, predictions_of_run, name=name) for name, predictions_of_run in names.items()
    ]
    (group,) = report_on(*roots).groups
    table = group.tables[0]
    judged = {compared.name_a: compared.judgment for compared in table.comparisons}
    assert judged == {"most": "too few to say", "mixed": "too few to say", "none": "worse"}
    assert "| none | 20 |" in (shown := as_markdown(report_on(*roots))) and "| too few to say |" in shown


def test_figures_of_a_table_are_those_of_the_cards(usual_run, page):
    results = read_results(usual_run)
    for protocol in (Protocol.MERGED, Protocol.EXTREME):
        scored = task_card(results, protocol, resamples=FEW)
        for figure in (*map(scored.known, ("accuracy", "macro-f1", "coverage")), *scored.decided.values()):
            assert f"{figure.value:.3f} [{figure.low:.3f}, {figure.high:.3f}]</td>" in page
        assert f"{scored.known('auroc').value:.3f}" in page and f"{scored.ece:.3f}" in page


def test_confusion_table_shows_the_counts_of_the_card(usual_run, page):
    scored = task_card(read_results(usual_run), Protocol.MERGED, resamples=FEW)
    assert sum(count for row in scored.confusion for count in row) == scored.n
    for row in scored.confusion:
        cells = "".join(rf"<td[^>]*>{count}</td>" for count in row)
        assert re.search(cells, page)


def test_calibration_curve_has_a_point_per_bin():
    bins = (Bin(0.1, 0.3, 17, 0.2, 0.25), Bin(0.5, 0.9, 11, 0.7, 1.0))
    svg = figures.calibration(bins, "x")
    assert {"17", "11"} <= set(texts_of(svg))
    assert "mean score 0.20: 0.25 of 17" in svg and "mean score 0.70: 1.00 of 11" in svg
    assert figures.calibration((), "x") is None


def test_rounds_match_the_predictions(usual_run):
    results = read_results(usual_run)
    rounds = {(histogram.side, histogram.harmful): histogram.counts for histogram in rounds_of(results)}
    expected = {}
    for judged in results.tried:
        for side, course in judged.prediction.sides.items():
            counts = expected.setdefault((Side(side), judged.meme.harmful), {})
            counts[course.rounds] = counts.get(course.rounds, 0) + 1
    assert rounds == expected and rounds


def test_points_of_curves_carry_their_values():
    scores = [0.9, 0.4, 0.6, 0.1]
    verdicts = results([True, True, False, False], [H, N, H, N], score=scores)
    drawn = dict(figures.curves(answers_of(verdicts, Protocol.PLAIN).arrays, "x"))
    assert list(drawn) == ["ROC", "Precision and recall", "Risk and coverage"]
    assert "false alarms 0.50, harmful memes found 1.00, from score 0.40" in drawn["ROC"]
    # The two surest are right, the others wrong.
    risk = drawn["Risk and coverage"]
    assert "coverage 0.50, risk 0.00" in risk and "coverage 1.00, risk 0.50" in risk
    one_class = results([True, True], [H, N], score=scores[:2])
    assert figures.curves(answers_of(one_class, Protocol.PLAIN).arrays, "y") == []


def test_a_page_has_all_memes_three_tiles_and_no_empty_box(page):
    elements = Elements(page)
    tiles = re.findall(r'<div class="tile"><h4>([^<]+)</h4>', page)
    assert tiles[:3] == ["Accuracy", "Macro-F1", "Coverage"]
    assert re.search(r"<title>[\d.]+, 95 % interval [\d.]+ to [\d.]+</title>", page)
    assert any("data-score" in attributes for _, attributes in elements.all) and 'class="tag good">Right<' in page


def test_figures_take_their_colours_from_the_style_sheet(page):
    svgs = re.findall(r"<svg.*?</svg>", page, re.S)
    assert len(svgs) >= 6
    for svg in svgs:
        assert "style=" not in svg and "<style" not in svg and "<metadata" not in svg
        assert not re.search(r'(fill|stroke)="#', svg), "a fixed colour would not follow the theme"
    classes = {name for svg in svgs for value in re.findall(r'class="([^"]*)"', svg) for name in value.split()}
    assert all(f".{name} " in page for name in classes), "each has a rule in the style sheet"


def test_element_ids_are_unique_and_all_references_resolve(page):
    elements = Elements(page)
    ids = [attributes["id"] for _, attributes in elements.all if "id" in attributes]
    assert len(ids) == len(set(ids))
    pointed = [a["href"][1:] for a in elements.of("a") if a["href"].startswith("#")]
    pointed += [a["for"] for a in elements.of("label") if "for" in a]
    pointed += [a["aria-labelledby"] for _, a in elements.all if "aria-labelledby" in a]
    pointed += re.findall(r"url\(#([\w-]+)\)", page)
    assert set(pointed) <= set(ids)


def test_untrusted_markup_stays_text_in_every_form(tmp_path):
    predictions = [
        ReportedMeme(MARKUP, VERY, "harmless", MARKUP, rationale=MARKUP, score=0.2),
        ReportedMeme("plain", NOT, "harmful", MARKUP, rationale=MARKUP),
    ]
    first = write_report_run(
        tmp_path / "a", predictions, name=MARKUP, command=MARKUP, settings={MARKUP: MARKUP}, machine=MARKUP
    )
    second = write_report_run(
        tmp_path / "b", predictions, name=f"{MARKUP} 2", data={MARKUP: "d" * 64}, models={"JUDGE": MARKUP}
    )
    report = report_on(first, second)
    page, markdown = as_html(report), as_markdown(report)
    elements = Elements(page)
    assert len(elements.of("script")) == 1
    assert all(attributes["src"].startswith("data:image/jpeg;base64,") for attributes in elements.of("img"))
    assert not [name for _, attributes in elements.all for name in attributes if name.startswith("on")]
    assert not re.search(r"<(script|img)", markdown), "Markdown lets HTML through"
    assert "\u202e" not in page and "\u202e" not in markdown and "U+202E" in page
    assert "\u202e" not in as_terminal(report)


def test_cells_cannot_break_a_markdown_table(tmp_path):
    predictions = [ReportedMeme("a|b\n|c|", VERY, "harmless", rationale="| one | two |\n\n# heading")]
    markdown = as_markdown(report_on(write_report_run(tmp_path, [*predictions, ReportedMeme("n", NOT, "harmless")])))
    (row,) = [line for line in markdown.splitlines() if "heading" in line]
    assert row.startswith("| a\\|b \\|c\\| | harmful") and len(re.findall(r"(?<!\\)\|", row)) == 9


def test_page_allows_only_its_own_script_and_style(page):
    (policy,) = [a["content"] for a in Elements(page).of("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    for tag in ("style", "script"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    elements = Elements(page)
    assert not [a for _, a in elements.all if "style" in a], "the policy would drop it"
    addresses = [a[name] for _, a in elements.all for name in ("src", "href", "xlink:href", "action") if a.get(name)]
    assert all(address.startswith(("#", "data:")) for address in addresses)


def test_pictures_are_small_and_optional(usual_run, page):
    sources = [a["src"] for a in Elements(page).of("img")]
    assert len(sources) == 4 + 3 * 3, "one for each wrong verdict and each precedent shown for it"
    for source in sources:
        picture = Image.open(io.BytesIO(base64.b64decode(source.split(",")[1])))
        assert picture.format == "JPEG" and max(picture.size) <= 320
    without = as_html(report_on(usual_run), pictures=False)
    assert not Elements(without).of("img") and 'class="picture"' not in without


def test_every_frame_of_an_animated_meme_is_shown(tmp_path):
    root = write_report_run(
        tmp_path, [ReportedMeme("a", VERY, "harmless", animated=True), ReportedMeme("b", NOT, "harmless")]
    )
    assert "frame 2 of 2" in as_html(report_on(root))


def test_record_shows_every_statement_of_the_trial(usual_run):
    (verdict,) = wrong_in(usual_run)[0].wrong
    trial = verdict.prediction.trial
    record = asyncio.run(read_records(usual_run, [trial], pictures=False)).records[trial]
    shown_transcript = transcript(record)
    for side in Side:
        turns = [examined.turns[side] for examined in shown_transcript.rounds if examined.turns[side]]
        counted = [turn for turn in turns if not turn.ahead]
        assert len(counted) == verdict.prediction.sides[side].rounds == 3
        assert all(turn.asked.call and turn.answered.call and turn.summed.call for turn in counted)
        assert [turn.summed.entropy for turn in counted] == list(verdict.prediction.sides[side].entropies)
    assert shown_transcript.arguments[Side.ACCUSER].argument.startswith("the accuser's reasons")
    assert (
        shown_transcript.description
        and shown_transcript.ruling
        and shown_transcript.vote
        and len(shown_transcript.precedents) == 3
    )
    page = as_html(report_on(usual_run))
    for words in (
        "What else does the defender want to know, number 2?",
        "It shows a flag",
        "the accuser&#39;s reasons",
    ):
        assert words in page


def test_report_names_missing_parts(tmp_path):
    predictions = [ReportedMeme("a", VERY, "undecided", rounds=0), ReportedMeme("b", NOT, "undecided", rounds=0)]
    root = write_report_run(
        tmp_path / "x", predictions, protocols=(Protocol.PLAIN,), dataset="unheard-of", docket=False, excluded={}
    )
    page = as_html(report_on(root))
    assert "There are no records: the run has no docket." in page
    assert page.count("<svg") == 3, "three tiles"


def test_published_figures_and_caveats_of_a_card_are_in_every_form_of_the_report(tmp_path):
    entry = {"system": "Nobody <b>", "setup": "by hand", "year": 2024, "task": "harm", "split": "test", "n": 354}
    entry |= {"protocol": "merged", "figures": {"accuracy": 0.789, "micro-f1": 0.7}, "remark": "Odd."}
    others = ({"system": "Elsewhere", "split": "val"}, {"system": "Otherwise", "protocol": "extreme", "split": "val"})
    own_card = with_published(entry, *({**entry, **other} for other in others), caveats=["two <i> of them"])
    report = report_on(write_report_run(tmp_path, card={**own_card, "id": "mine"}, dataset="mine"))
    (section,) = (one for one in sections_of(report) if "published" in one.key)
    head, ours, theirs = section.rows
    assert head == ("system", "asked with", "memes", "accuracy", "micro-f1")
    assert ours[:3] == ("full court", "full", "8") and ours[3].startswith("0.500 [") and ours[4] == "–"
    assert theirs == ("Nobody <b> (2024)", "by hand", "354", "0.789", "0.700")
    terminal, markdown, page = as_terminal(report), as_markdown(report), as_html(report)
    assert "On this data set: two <i> of them." in terminal and "On 354 memes, and not on 8 as here: Nobo" in terminal
    assert "Odd: Nobody <b>." in terminal and "On this data set: two &lt;i&gt; of them." in markdown
    assert "On this data set: two &lt;i&gt; of them." in page and "Nobody &lt;b&gt; (2024)" in page
    assert all("Elsewhere" not in form and "Otherwise" not in form for form in (terminal, markdown, page))


def test_damaged_record_is_reported_in_its_place(tmp_path):
    import sqlite3

    root = write_report_run(tmp_path)
    with sqlite3.connect(root / DOCKET) as docket:
        docket.execute("DROP TRIGGER entries_update")
        changed = docket.execute("UPDATE entries SET body = x'00' WHERE kind = 'VerdictGiven'").rowcount
    docket.close()
    assert changed
    page = as_html(report_on(root))
    assert page.count("No record: What the docket holds") == 3
    (root / DOCKET).write_bytes(b"no docket at all" * 100)
    assert "the run&#39;s docket can&#39;t be opened" in as_html(report_on(root))


@pytest.mark.slow
def test_unfinished_run_is_reported_as_such(tmp_path):
    predictions = [*USUAL_MEMES[:5], dataclasses.replace(USUAL_MEMES[5], says="")]
    report = report_on(write_report_run(tmp_path, predictions, finished=False))
    assert "full court is not finished: 5 of 6 memes are judged" in report.runs[0].unfinished_words
    for form in (as_terminal(report), as_markdown(report), as_html(report)):
        assert "5 of 6 memes are judged" in form and "not finished" in form.lower()
    assert [wrong.meme.id for wrong in wrong_in(tmp_path)] == ["m3"], "a meme without verdict is no wrong verdict"
    assert report_on(write_report_run(tmp_path / "all", USUAL_MEMES)).unfinished == ()


def test_report_names_a_protocol_left_without_memes(tmp_path):
    root = write_report_run(tmp_path, [ReportedMeme("a", SOME, "harmful"), ReportedMeme("b", SOME, "harmless")])
    report = report_on(root)
    assert [table.first.protocol for table in report.groups[0].tables] == [Protocol.MERGED]
    for form in (as_terminal(report), as_markdown(report), as_html(report)):
        assert "protocol extreme no meme" in form


def test_runs_of_the_same_name_are_labelled_by_folder(tmp_path):
    predictions = USUAL_MEMES[:2]
    roots = [write_report_run(tmp_path / name, predictions) for name in ("one", "two")]
    assert [run.label for run in report_on(*roots).runs] == ["full court (one)", "full court (two)"]


def test_folder_of_runs_stands_for_its_runs(tmp_path):
    for name in ("b", "a"):
        write_report_run(tmp_path / name, USUAL_MEMES[:2], name=name)
    (tmp_path / "calls.sqlite").touch()
    assert [root.name for root in runs_below(tmp_path)] == ["a", "b"]
    assert runs_below(tmp_path / "a") == (tmp_path / "a",)
    with pytest.raises(BadRequest, match="holds no run"):
        runs_below(tmp_path / "c")


def test_command_writes_the_requested_forms(usual_run, tmp_path):
    html, markdown = tmp_path / "r.html", tmp_path / "r.md"
    outcome = CliRunner().invoke(cli, ["report", str(usual_run), "--html", str(html), "--markdown", str(markdown)])
    assert outcome.exit_code == 0, outcome.output
    assert "accuracy, decided" in outcome.output and "Wrong: 1 harmful, said not harmful" in outcome.output
    assert html.read_text().startswith("<!DOCTYPE html>") and markdown.read_text().startswith("# ")
    assert CliRunner().invoke(cli, ["report", str(usual_run), "--open"]).exit_code == 2
    missing = CliRunner().invoke(cli, ["report", str(tmp_path / "nothing")])
    assert missing.exit_code == 1 and "holds no run" in missing.output
