"""Exports of the console: permissions, formats, and what is recorded about them."""

import asyncio
import csv
import io
import json

import pytest

from court.errors import Unavailable
from court.events import ReviewOutcome
from court.verdict import Label
from serving.export.source import read_document
from tests.support.consoles import ConsoleVisitor, app_of, create_docket, open_recording_docket, tokens_for
from tests.support.dockets import events_of
from tests.support.shown_trials import TEXT, drawn_picture, full_trial

pq = pytest.importorskip("pyarrow.parquet")

ONE, HIDDEN = "one", "hidden"
FORMS = {"html": "text/html", "json": "application/json", "dsa": "application/json"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A docket with a trial visible to everybody, one of another namespace, and one without models."""
    picture = drawn_picture()
    trials = [full_trial(ONE, picture=picture), full_trial(HIDDEN, picture=picture, namespace="closed"), events_of("s")]
    return create_docket(tmp_path_factory.mktemp("docket") / "docket.sqlite", trials, [picture])


@pytest.fixture
def console(place, tmp_path):
    """Returns a function that signs a user in and returns their visit."""
    tokens = tokens_for(tmp_path)
    docket = open_recording_docket(place)
    app = app_of(docket, tmp_path)

    def visit(who):
        return ConsoleVisitor(app, tokens[who])

    visit.docket = docket
    yield visit
    asyncio.run(docket.close())


def recorded_views(console):
    return console.docket.reviews.looked


@pytest.mark.parametrize("form", FORMS)
def test_a_trial_is_exported_as_a_download(console, form):
    trial_id = "s" if form == "dsa" else ONE  # the other was found harmless, so there are no reasons to state
    answer = console("vera").get(f"/trials/{trial_id}/export/{form}")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith(FORMS[form])
    assert answer.headers["content-disposition"].startswith(f'attachment; filename="trial-{trial_id}.')
    assert answer.headers["cache-control"] == "no-store" and len(answer.content) > 800
    assert not recorded_views(console), "nothing was shown that has to be recorded"


def test_sharp_pictures_are_exported_only_after_being_recorded(console):
    visit = console("vera")
    veiled = visit.get(f"/trials/{ONE}/export/html").text
    answer = visit.post(f"/trials/{ONE}/export/html", {"pictures": "sharp"})
    assert answer.status_code == 200 and len(answer.text) > len(veiled)
    recorded = recorded_views(console)
    assert {each["what"] for each in recorded} >= {"meme"} and {each["who"] for each in recorded} == {"vera"}
    assert any(each["what"].startswith("precedent:") for each in recorded)
    console.docket.reviews.looked.clear()
    console.docket.reviews.refuses = Unavailable("full")
    try:
        assert visit.post(f"/trials/{ONE}/export/json", {"pictures": "sharp"}).status_code == 503
    finally:
        console.docket.reviews.refuses = None
    assert visit.client.post(f"/trials/{ONE}/export/html", data={"pictures": "sharp"}).status_code == 403  # no proof
    assert visit.post(f"/trials/{ONE}/export/html", {"pictures": "none"}).status_code == 400
    assert not recorded_views(console)


def test_exports_contain_no_trial_of_other_namespaces(place, tmp_path):
    tokens = tokens_for(tmp_path, vera=["open"])
    docket = open_recording_docket(place)
    visit = ConsoleVisitor(app_of(docket, tmp_path), tokens["vera"])
    try:
        for form in FORMS:
            assert visit.get(f"/trials/{HIDDEN}/export/{form}").status_code == 404
        lines = visit.get("/export/jsonl").text.splitlines()
        assert {json.loads(line)["trial_id"] for line in lines} == set()
        named = visit.get("/export/jsonl?q=namespace:closed")
        assert named.status_code == 403
    finally:
        asyncio.run(docket.close())


def test_an_export_contains_every_selected_trial(console):
    visit = console("vera")
    lines = visit.get("/export/jsonl").text.splitlines()
    assert {read_document(line).trial_id for line in lines} == {ONE, HIDDEN, "s"}
    rows = visit.get("/export/parquet?q=namespace:closed")
    assert rows.headers["content-disposition"].endswith('.parquet"')
    assert pq.read_table(io.BytesIO(rows.content)).column("trial_id").to_pylist() == [HIDDEN]
    none = visit.get("/export/jsonl?q=is:failed")
    assert none.status_code == 200 and none.text == ""
    for query in ("label:GOOD", "since:yesterday", "lable:x"):
        assert visit.get(f"/export/jsonl?q={query}").status_code == 400
    assert visit.get("/export/xlsx").status_code == 404 and visit.get(f"/trials/{ONE}/export/docx").status_code == 404
    page = visit.get("/trials?q=is:decided+namespace:closed").text
    for form in ("csv", "jsonl", "parquet"):
        assert f'href="/export/{form}?q=is%3Adecided+namespace%3Aclosed"' in page, "an export acts on what is shown"


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_an_export_counts_as_a_view_of_each_trial(console, form):
    visit = console("vera")
    exported = visit.get(f"/export/{form}?q=is:decided+namespace:closed")
    assert exported.status_code == 200 and len(exported.content) > 300
    recorded = [(each["trial_id"], each["who"], each["what"]) for each in recorded_views(console)]
    assert recorded == [(HIDDEN, "vera", f"export as {form}")]
    console.docket.reviews.looked.clear()
    console.docket.reviews.refuses = Unavailable("full")
    try:
        refused = visit.get(f"/export/{form}?q=is:decided")
    finally:
        console.docket.reviews.refuses = None
    assert refused.status_code == 503 and TEXT.split(",")[0] not in refused.text, "what can't be logged is not shown"
    assert not recorded_views(console)


def test_a_spreadsheet_runs_no_text_as_a_formula(tmp_path):
    tokens, picture = tokens_for(tmp_path), drawn_picture()
    trials = [full_trial(f"t{sign}", picture=picture, text=f"{sign}1+1") for sign in "=+-@'"]
    docket = open_recording_docket(create_docket(tmp_path / "d.sqlite", trials, [picture]))
    table = ConsoleVisitor(app_of(docket, tmp_path), tokens["vera"]).get("/export/csv").text
    asyncio.run(docket.close())
    rows = {row["trial_id"]: row for row in csv.DictReader(io.StringIO(table))}
    assert {row["text"] for row in rows.values()} == {"'=1+1", "'+1+1", "'-1+1", "'@1+1", "'1+1"}
    assert rows["t="]["label"] == "NOT_HARMFUL" and "starter-014; " in rows["t="]["precedents"]


def test_a_trial_without_harm_has_no_statement_of_reasons(place, tmp_path):
    tokens = tokens_for(tmp_path)
    trial = full_trial("benign", picture=drawn_picture())
    own = create_docket(tmp_path / "d.sqlite", [trial])

    async def overrule(docket):
        label = Label.NOT_HARMFUL if trial[-1].verdict.label is Label.HARMFUL else Label.HARMFUL
        values = {"outcome": ReviewOutcome.OVERRULED, "label": label, "reason": "r", "clause": "", "reviewer": "Ruth"}
        await docket.reviews.review("benign", at=trial[-1].at, **values)

    docket = open_recording_docket(own)
    visit = ConsoleVisitor(app_of(docket, tmp_path), tokens["vera"])

    def statement():
        offered = "/trials/benign/export/dsa" in visit.get("/trials/benign").text
        return visit.get("/trials/benign/export/dsa").status_code, offered

    try:
        before = statement()
        asyncio.run(overrule(docket))
        assert {before, statement()} == {(200, True), (409, False)}
    finally:
        asyncio.run(docket.close())
