"""Transparency reports: every figure counted anew from the events, and what is left blank."""

import csv
from datetime import timedelta

from click.testing import CliRunner

from court.events import ReviewOutcome
from court.verdict import Label
from serving.cli.main import cli
from serving.export.transparency import measure, parts, template
from tests.support.desks import ReviewDesk, Rules, verdict
from tests.support.dockets import NOON, with_docket

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
