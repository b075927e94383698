"""Robustness of the console: every page with odd values in its address, fields and headers."""

import re
from urllib.parse import urlencode

import pytest

from court.verdict import Label
from serving.console.app import PAGES
from serving.docket.review.search import KEYS
from tests.support.desk_pages import PICTURE, desk_pages, form_of
from tests.support.desks import verdict
from tests.support.dockets import parse_place

ODD = (
    "a%00b", "%ED%A0%80%FF", "%E2%80%AE", "-1", "9" * 5000, "NaN", "%22%3E%3Cscript%3E", "..%2F..%2Fetc", "%5C_%25",
    "%EF%B7%BA" * 1000, "a+" * 5000, "0001-01-01", "9999-12-31", "2026-02-30",
    "0001-01-01T00%3A00%3A00%2B23%3A59+t", "9999-12-31T23%3A59%3A59-23%3A59+t",
)  # fmt: skip
"""Percent-encoded values for addresses."""
QUERIES = {
    "/trials": ("q", "q=label:harmful&after", "sort", "col", *(f"q={key}:" for key in KEYS)),
    "/sign-in": ("next",),
    "/desk": ("why", "urgency=1&opened", "urgency=1&opened=x&after", "after=a&urgency"),
    "/desk/agreement": ("since", "until", "blind"),
    "/desk/cases/{trial_id}": ("shown", "precedent"),
    "/trials/{trial_id}": ("shown",),
    "/trials/{trial_id}/news": ("from",),
    "/trials/{trial_id}/compare": ("with",),
    "/trials/{trial_id}/picture": ("of", "frame"),
    "/trials/{trial_id}/hide": ("of", "back"),
    "/export/{form}": ("q", *(f"q={key}:" for key in KEYS)),
}  # fmt: skip
FIELDS = ("of", "back", "again", "label", "clause", "other_clause", "reason", "why", "note", "alike", "back_why",
          "precedent", "name", "text", "since", "token", "next", "pictures")  # fmt: skip


@pytest.fixture
def place(docket_place):
    return parse_place(docket_place)


def odd_addresses():
    for page in (page for page in PAGES if "GET" in page.methods):
        usual = {"trial_id": "a", "form": "json", "seq": "0", "frame": "0", "key": "x", "name": "x"}
        for odd in re.findall(r"\{(\w+)", page.path):
            for value in ODD:
                yield re.sub(r"\{(\w+)\}", lambda found, own={**usual, odd: value}: own[found[1]], page.path)
        path = re.sub(r"\{(\w+)\}", lambda found, own={**usual, "form": "jsonl"}: own[found[1]], page.path)
        yield from (
            f"{path}?{name}{'' if name[-1] == ':' else '='}{value}"
            for name in QUERIES.get(page.path, ())
            for value in ODD
        )


async def test_no_address_breaks_a_page(tmp_path, place):
    async with desk_pages(tmp_path, place=place) as pages:
        await pages.tried("a", verdict(Label.HARMFUL, score=0.55, category="a\0b"), pixels=PICTURE.pixels_sha256)
        root = await pages.person("root")
        answers = {path: (await root.get(path)).status_code for path in odd_addresses()}
        category = (await pages.desk.case("a")).category
    assert len(answers) > 700 and category == "a\0b"
    assert {path[:100]: int(code) for path, code in answers.items() if code >= 500} == {}


async def test_no_field_breaks_a_page(tmp_path, place):
    async with desk_pages(tmp_path, place=place) as pages:
        await pages.tried("a", verdict(Label.UNDECIDED), pixels=PICTURE.pixels_sha256)
        root = await pages.person("root")
        broken = []
        for odd in ("\0", "a\0b", "\u202e", "\ud800", "x" * 3000, "ﷺ" * 1000, "9" * 5000, "<script>", "-1", "\\"):
            for page in PAGES:
                if "POST" not in page.methods or page.path == "/sign-out":
                    continue
                path = re.sub(
                    r"\{(\w+)(?::\w+)?\}", lambda found: {"trial_id": "a", "form": "html"}[found[1]], page.path
                )
                await root.post("/desk/cases/a/take", {"again": "yes"})
                form = form_of((await root.get("/trials")).text, {})
                body = urlencode(dict.fromkeys(FIELDS, odd), errors="surrogatepass")
                answer = await root.client.post(path, **{**form, "content": f"{form['content']}&{body}"})
                if answer.status_code >= 500:
                    broken.append((path, odd[:9], answer.status_code))
    assert not broken


async def test_no_header_breaks_a_page(tmp_path):
    async with desk_pages(tmp_path) as pages:
        root = await pages.person("root")
        codes = []
        for odd in (
            b"\xff\xfe",
            b"a=b; memecourt_session=\xc3\xbf",
            b"memecourt_session=" + b"x" * 60000,
            b"=;=;",
            b'"',
        ):
            for name in (b"cookie", b"x-memecourt-proof", b"origin", b"content-type", b"hx-request", b"sec-fetch-site"):
                for method in ("GET", "POST"):
                    answer = await root.client.request(method, "/sign-in", headers=[(name, odd)], content=b"proof=x")
                    codes.append(answer.status_code)
        assert max(codes) < 500
