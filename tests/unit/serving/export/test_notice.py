"""Notices: the sentences of each language, what they tell, and what never stands in them."""

import csv
import json
import string
from datetime import timedelta

import pytest
from click.testing import CliRunner

from court.errors import BadRequest
from court.events import ReviewOutcome
from court.in_force import Authority
from court.policy import DEFAULT_POLICY
from court.record import TrialRecord
from court.verdict import Label, ReviewReason
from serving.cli.main import cli
from serving.docket.errors import NotDecided
from serving.export.notice import language_of, notice_words, write_notice
from serving.export.transparency import measure, parts, template
from tests.support.desks import ReviewDesk, Rules, trial, verdict
from tests.support.dockets import NOON, append_all, with_docket
from tests.support.messages import SECRET, a_trial, altered, reviewed


def fields_of(sentence):
    return {name for _, name, _, _ in string.Formatter().parse(sentence) if name}


def test_each_language_has_every_sentence_with_the_same_fields():
    languages = notice_words()
    assert {"en", "de"} <= set(languages)
    english = languages["en"]
    for words in languages.values():
        assert words.keys() == english.keys() and words["levels"].keys() == english["levels"].keys()
        for name, sentence in english.items():
            if name != "levels":
                assert fields_of(words[name]) == fields_of(sentence), name


@pytest.mark.parametrize("language", ["en", "de"])
def test_notice_tells_what_by_which_clause_what_counted_and_how_to_object(language):
    record = a_trial()
    clause, words = DEFAULT_POLICY.clauses[3], notice_words()[language]
    text = write_notice(record, language)
    paragraphs = text.strip().split("\n\n")
    assert paragraphs[0] == words["title"] and words["harmful"] in paragraphs[1]
    assert f"{record.opened.at:%Y-%m-%d}" in paragraphs[1]
    assert f" 4 ({clause.category})" in paragraphs[2] and clause.text in paragraphs[2]
    counted = paragraphs[3].split("\n- ")
    strengths = record.verdict.strengths
    assert counted[:2] == [words["counted"], words["counted_picture"]]
    assert words["levels"][strengths.harmful] in counted[2] and len(counted) == 3
    assert paragraphs[4] == words["automated"]
    assert paragraphs[5].startswith(words["object"]) and record.trial_id in paragraphs[5]


@pytest.mark.parametrize("language", ["en", "de"])
@pytest.mark.parametrize("outcome", [None, ("UPHELD", "HARMFUL"), ("OVERRULED", "NOT_HARMFUL")])
def test_notice_holds_nothing_of_precedents_models_or_reviewers(language, outcome):
    record = a_trial()
    meme = record.opened.meme.model_copy(update={"namespace": "tenant-7"})
    record = altered(record, 0, meme=meme, request_id="erika-1")
    record = reviewed(record, *outcome) if outcome else record
    text = write_notice(record, language)
    exhibits = record.precedents.findings.exhibits
    assert exhibits and json.dumps([event.model_dump(mode="json") for event in record.events]).count(SECRET) > 9
    for hidden in (
        "Erika",
        "Mustermann",
        "Elm Road",
        "660",
        "tenant-7",
        "erika",
        "Ruth",
        meme.pixels_sha256,
        *(each.id for each in exhibits),
    ):
        assert hidden not in text, hidden
    person = notice_words()[language]["not_automated"]
    assert (person in text) is bool(outcome)


def test_overruled_verdicts_are_not_among_what_counted():
    words = notice_words()["en"]
    text = write_notice(reviewed(a_trial(), "OVERRULED", "NOT_HARMFUL"), "en")
    assert words["not_harmful"] in text and words["counted_picture"] not in text and "weighed" not in text
    upheld = write_notice(reviewed(a_trial()), "en")
    assert words["counted_picture"] in upheld and "decided by that person's own judgement" in upheld


def test_undecided_and_texts_alone_have_their_own_sentences():
    record = TrialRecord.of(trial("t", verdict(Label.UNDECIDED)))
    assert record.in_force.by is Authority.COURT
    text = write_notice(record, "en")
    assert notice_words()["en"]["undecided"] in text and "clause" not in text and "content of t" in text
    with pytest.raises(NotDecided):
        write_notice(TrialRecord.of(trial("t")), "en")


def test_summary_names_no_sides_and_a_doubtful_label_is_no_decision():
    summary = write_notice(TrialRecord.of(trial("t", verdict())), "en")
    words = notice_words()["en"]
    assert words["harmful"] in summary and "Two sides" not in summary
    doubtful = write_notice(TrialRecord.of(trial("t", verdict(reasons=[ReviewReason.TEXT_UNSURE]))), "en")
    assert words["review"] in doubtful and words["harmful"] not in doubtful


def test_language_is_the_wanted_one_else_that_of_the_content():
    record = TrialRecord.of(trial("t", verdict()))
    german = altered(record, 1, language="de-AT")
    french = altered(record, 1, language="fr")
    assert [language_of(each) for each in (record, german, french)] == ["en", "de", "en"]
    assert language_of(german, "en") == "en"
    with pytest.raises(BadRequest):
        language_of(record, "fr")


def test_command_prints_the_notice_and_a_link_where_the_setting_says_so(tmp_path, monkeypatch):
    place = tmp_path / "docket.sqlite"
    with_docket(place, lambda docket: append_all(docket, trial("trial-1", verdict(category="nationality"))))
    monkeypatch.setenv("MEMECOURT_HOME", str(tmp_path))
    run = CliRunner().invoke(cli, ["notice", "trial", "--language", "de"])
    assert run.exit_code == 0 and "trial-1" in run.output and "Sie können widersprechen" in run.output
    assert "/notice/" not in run.output
    monkeypatch.setenv("MEMECOURT_NOTICE_LINK_DAYS", "14")
    assert "MEMECOURT_HTTP_ORIGIN names" in CliRunner().invoke(cli, ["notice", "trial-1"]).output
    monkeypatch.setenv("MEMECOURT_HTTP_ORIGIN", "https://example.org/court")
    run = CliRunner().invoke(cli, ["notice", "trial-1"])
    assert run.exit_code == 0 and "https://example.org/court/notice/" in run.output
    assert CliRunner().invoke(cli, ["notice", "trial-1", "--language", "xx"]).exit_code == 1


H, N, U = Label.HARMFUL, Label.NOT_HARMFUL, Label.UNDECIDED


async def fill(it):
    """Four blocked (one after an appeal that upheld it), one freed by an appeal, one allowed, one undecided."""
    docket = it.docket

    async def tried(name, label, at=NOON, **options):
        category = "nationality" if label is H else ""
        await it.tried(name, verdict(label, category=category), at=at, words=f"words of {name}", **options)

    async def review(name, who, label, at, was=H):
        outcome = ReviewOutcome.UPHELD if label is was else ReviewOutcome.OVERRULED
        await docket.reviews.review(name, outcome=outcome, label=label, reason="r", clause="", reviewer=who, at=at)

    async def appeal(name, at):
        await docket.reviews.open_appeal(name, by="forum", statement="why", reference="", at=at)

    for name, label in (("a", H), ("b", H), ("upheld", H), ("freed", H), ("waits", H), ("fine", N), ("open", U)):
        await tried(name, label)
    await tried("before", H, at=NOON - timedelta(days=9))
    await tried("try", H, namespace="sandbox")
    await review("upheld", "ada", H, NOON + timedelta(hours=1))
    for name in ("upheld", "freed", "waits", "before"):
        await appeal(name, NOON + timedelta(hours=2))
    await review("upheld", "ada", H, NOON + timedelta(hours=3))  # does not decide the appeal against herself
    await review("upheld", "ben", H, NOON + timedelta(hours=6))
    await review("freed", "ben", N, NOON + timedelta(hours=4))
    await review("before", "ben", H, NOON + timedelta(hours=12))
    await tried("gone", H)
    await docket.eraser.erase("gone", who="ada", why="asked for", at=NOON)
    await it.desk.catch_up()


def made(place):
    async def work(docket):
        it = ReviewDesk(docket, Rules(sampled=1.0))
        await fill(it)
        period = {"since": NOON - timedelta(days=1), "until": NOON + timedelta(days=1)}
        return parts(await measure(docket, it.desk, **period), "Forum")

    return with_docket(place, work)


def test_each_figure_is_that_of_the_events(tmp_path):
    tables = made(tmp_path / "docket.sqlite")
    measures = {row[3]: row[4:6] for row in tables["06_own_initiative_terms.csv"][1:]}
    assert measures.pop("TOTAL") == [4, 3]
    assert measures.pop("STATEMENT_CATEGORY_ILLEGAL_OR_HARMFUL_SPEECH") == [4, 3]
    assert len(measures) == 14 and set(map(tuple, measures.values())) == {("", "")}
    complaints = {row[5]: row[6] for row in tables["07_complaints.csv"][1:]}
    # Of trials opened before the period too: an appeal counts when it is made. Hours: 4, 2 and 10.
    assert complaints == {
        "Total number": 4, "Decisions upheld": 2, "Decisions partially reversed": "", "Decisions reversed": 1,
        "Median time": 4.0, "Decision omitted": "",
    }  # fmt: skip
    means = [row[6] for row in tables["08_automated_means.csv"][1:]]
    # Drawn and reviewed in the period: upheld (right) and freed (wrong).
    assert means == [3, 1, 50.0, 50.0, 100.0] and "1 of 2" in tables["08_automated_means.csv"][3][7]
    appendix = dict(tables["appendix.csv"][1:])
    assert appendix["Items judged"] == 7 and appendix["Items erased since, in no other figure"] == 1
    assert [appendix[f"Decisions: {name}"] for name in ("block", "allow", "review")] == [4, 2, 1]
    assert appendix["Verdicts that a person overruled"] == 1 and appendix["Appeals that wait for a person"] == 1
    assert appendix["Verdicts without a label"] == 1 and appendix["Verdicts that a person reviewed"] == 2


def test_parts_that_the_docket_does_not_know_are_listed():
    blank = " ".join(template()["blank"])
    assert all(f"Part {number}" in blank for number in (3, 4, 5, 6, 7, 8, 9, 10, 11))


def test_command_writes_tables_and_a_page(tmp_path, monkeypatch):
    made(tmp_path / "docket.sqlite")
    monkeypatch.setenv("MEMECOURT_HOME", str(tmp_path))
    day = f"{NOON:%Y-%m-%d}"
    out = tmp_path / "out"
    run = CliRunner().invoke(
        cli, ["report", "transparency", "--from", day, "--to", day, "--service", "<b>", "-o", str(out)]
    )
    assert run.exit_code == 0, run.output
    with (out / "07_complaints.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["Reporting period"] == f"{day}/{day}" and rows[0]["Value"] == "4"
    page = (out / "index.html").read_text("utf-8")
    assert "<b>" not in page and "STATEMENT_CATEGORY_SELF_HARM" in page and "Part 9" in page
    assert (
        CliRunner().invoke(cli, ["report", "transparency", "--from", day, "--to", "2001-01-01", "-o", "x"]).exit_code
        == 2
    )
