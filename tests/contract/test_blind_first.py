"""Who decides before the verdict is shown learns nothing of it from any page, or the review does not count as blind."""

import re
from itertools import product

import pytest
from sqlalchemy import delete

from court.events import NearDuplicate, NearDuplicatesFound
from court.verdict import Label, ReviewReason, Strength
from serving.console.app import PAGES
from serving.docket.review.blinding import verdict_was_shown
from serving.docket.review.projection import ReviewPriority
from serving.docket.store import review_tables as desk_tables
from tests.support.desk_pages import PICTURE, form_of, play_pages, said
from tests.support.desks import trial, verdict
from tests.support.dockets import NOON

H, N, U = Label.HARMFUL, Label.NOT_HARMFUL, Label.UNDECIDED
MODERATE, WEAK, STRONG = Strength.MODERATE, Strength.WEAK, Strength.STRONG
WORLDS = {
    "harmful": verdict(
        H, score=0.55, strengths=(MODERATE, MODERATE), rationale="zebra", category="nationality",
    ),
    "not harmful": verdict(
        N, score=0.46, strengths=(WEAK, STRONG), rationale="quagga quagga",
        reasons=[ReviewReason.NEAR_DUPLICATE_HARMFUL],
    ),
}  # fmt: skip
"""One case, whose verdict differs in all that it can differ in while the case waits for the same reasons."""
GIVEN_AWAY = ("zebra", "quagga", "0.55", "0.46", "because of near_duplicate", "I found it")
DECIDING = {("/desk/cases/{trial_id}/review", "POST"), ("/sign-out", "POST")}
"""What says what one has found, and what ends the session."""
QUERIES = {
    "/": [
        *(f"?label={label}" for label in Label), "?look=1", *(f"?label={label}&look=1" for label in Label),
        *(f"?state={state}" for state in ("OPEN", "DECIDED", "FAILED")),
    ],
    "/desk": [f"?why={why}" for why in ReviewPriority],
    "/desk/find": [
        *(f"?label={label}" for label in Label), *(f"?why={why}" for why in ReviewPriority),
        *(f"?text={word}" for word in ("monday", "zebra", "quagga")), "?category=nationality",
        "?label=HARMFUL&text=monday",
        "?reviewer=bea",
    ],
    "/desk/agreement": ["?blind=yes"],
    "/trials/{trial_id}/news": ["?from=0", "?from=1"],
    "/trials/{trial_id}/compare": ["?with=a", "?with=twin", "?with=near"],
    "/trials/{trial_id}/hide": ["?of=meme"],
}  # fmt: skip


def addresses():
    """Every page, with addresses that lead to something of the case or of a trial that tells of it."""
    for page, method in ((each, method) for each in PAGES for method in each.methods):
        if page.role is None or (page.path, method) in DECIDING:
            continue
        forms = ("html", "json", "pdf", "dsa", "jsonl", "parquet") if "{form}" in page.path else ("",)
        trials = ("a", "twin", "near") if "{trial_id}" in page.path else ("",)
        places = range(6) if "{seq" in page.path else (0,)
        for trial_id, form, seq, query in product(trials, forms, places, ("", *QUERIES.get(page.path, ()))):
            named = {"trial_id": trial_id, "form": form, "seq": str(seq), "frame": "0"}
            path = re.sub(r"\{(\w+)(?::\w+)?\}", lambda found, named=named: named.get(found[1], "x"), page.path)
            yield method, path + query


async def visited(it, ended):
    """What each page is for a reviewer who knows nothing, and whether a review after it would count as blind."""
    same = {"pixels": PICTURE.pixels_sha256, "words": "Monday people"}
    await it.tried("a", ended, **same)
    await it.tried("twin", verdict(ended.label, rationale=ended.rationale), **same)
    near = trial("near", verdict(N), pixels="0" * 64, words="another text")
    duplicate = NearDuplicate(trial_id="a", label=ended.label, distance=3, same_text=True, same_picture=False)
    near.insert(2, NearDuplicatesFound(trial_id="near", seq=2, at=NOON, duplicates=(duplicate,), latency_s=0.1))
    for seq, event in enumerate(near):
        await it.docket.writer.append(event.model_copy(update={"seq": seq}))
    await it.tried("alike", ended, words="Tuesday", pixels="1" * 64)
    await it.desk.take("a", "bea")
    await it.desk.review("a", "bea", label=ended.label, clause="4", reason=f"I found it {ended.label}.")
    await it.desk.take("a", "bea", again=True)
    await it.desk.ask_opinion("a", "bea", f"I found it {ended.label}. You too?")
    ada = await it.person("ada")
    found = {}
    # Last what changes the case.
    for method, path in sorted(addresses(), key=lambda one: (one[0] == "POST", one[1].endswith("opinion"))):
        with it.docket.transactions.database.writing() as connection:
            connection.execute(delete(desk_tables.seen))
        options = {}
        if method == "POST":
            fields = {"why": "" if path.endswith("/next") else "Is it?", "of": "meme", "pictures": "sharp", "name": "n"}
            options = form_of((await ada.get("/export")).text, fields)
        answer = await ada.client.request(method, path, **options)
        if answer.status_code == 303:
            answer = await ada.get(answer.headers["location"])
        blind = not await it.docket.auditor.read(lambda connection: verdict_was_shown(connection, "a", "ada"))
        text = re.sub(r"\b[0-9a-f]{64}\b|shown=[\w-]+|/sharp/[\w-]+", "", answer.text)
        found[method, path] = answer.status_code, text, blind
    return found


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    return [
        play_pages(tmp_path_factory.mktemp("world"), lambda it, ended=ended: visited(it, ended), library=False)
        for ended in WORLDS.values()
    ]


@pytest.mark.slow
def test_no_page_tells_the_verdict_to_who_can_still_decide_blind(worlds):
    """Of every page there is: it is the same whatever the verdict, or it is noted that the verdict was shown."""
    one, other = worlds
    assert one.keys() == other.keys() and len(one) > 150
    blind = 0
    for address, (status, text, still_blind) in one.items():
        status_too, text_too, still_blind_too = other[address]
        if still_blind or still_blind_too:
            assert still_blind is still_blind_too and status == status_too and text == text_too, address
            assert not [word for word in GIVEN_AWAY if word in text and word not in address[1]], address
            blind += 1
    assert blind > 60, "most pages don't cost that a review is blind"
    pages_of_the_desk = [address for address in one if address[1].startswith("/desk")]
    seen_there = [address for address in pages_of_the_desk if not one[address][2]]
    assert {path.rsplit("/", 1)[-1] for _, path in seen_there} == {"see"}


@pytest.mark.slow
def test_each_page_that_shows_a_verdict_notes_it(worlds):
    """So that nothing above is the same because nothing was shown at all."""
    told = {path for (_, path), (_, text, blind) in worlds[0].items() if "zebra" in text and not blind}
    for path in ("/trials/a", "/trials/a/news?from=0", "/trials/a/compare?with=near", "/trials/a/export/html",
                 "/trials/a/export/json", "/trials/a/bundle", "/export/jsonl"):  # fmt: skip
        assert path in told, path
    noted = {path for (_, path), (_, _, blind) in worlds[0].items() if not blind}
    assert {
        "/trials/a/export/pdf",
        "/trials/a/export/dsa",
        "/trials/a/messages/2",
        "/trials/near",
        "/trials/twin",
        "/export/parquet",
    } <= noted


def test_what_other_trials_of_the_meme_came_to_counts(tmp_path):
    """Their verdicts are kept back while this one waits, and who has read one all the same is not blind."""

    async def work(it):
        same = {"pixels": PICTURE.pixels_sha256, "words": "Monday people"}
        await it.tried("a", verdict(U), **same)
        await it.tried("twin", verdict(H, rationale="zebra"), **same)
        await it.tried("caption", verdict(H), **{**same, "words": "other words"})  # that is another meme
        ada, bea = await it.person("ada"), await it.person("bea")
        listed = (await ada.get("/desk/find")).text
        await bea.get("/trials/twin")
        case = said(await bea.get("/desk/cases/a"))
        return (
            listed,
            case,
            (await it.reviewed("a", "ada", H)).blind,
            (await it.reviewed("a", "bea", H, again=True)).blind,
        )

    listed, case, ada, bea = play_pages(tmp_path, work, library=False)
    assert {*re.findall(r'href="([^"]*)" class="row-link"', listed)} == {
        "/desk/cases/a", "/desk/cases/twin", "/trials/caption",
    }  # fmt: skip
    assert "is shown once you have decided" in case, "its own verdict is kept back all the same"
    assert (ada, bea) == (True, False)


def test_labels_in_lists_are_noted_for_when_such_a_case_comes_up_later(tmp_path):
    async def work(it):
        for name in ("seen", "unseen"):
            await it.tried(name, verdict(H), words=f"{name} words", pixels=name[0] * 64)
        ada, bea, cy = [await it.person(name) for name in ("ada", "bea", "cy")]
        await ada.get("/desk/find?text=unseen")
        await bea.get("/desk/find?text=nothing")
        await cy.get("/")
        return [(await it.reviewed("unseen", who, N, again=True)).blind for who in ("ada", "bea", "cy")]

    assert play_pages(tmp_path, work, library=False) == [False, True, False]


def test_where_a_list_ends_tells_nothing(tmp_path):
    """A page goes on with the last trial that it shows, and not with one that is left out of it."""

    async def work(it):
        for number in range(52):
            await it.tried(f"t{number:02}", verdict(H, rationale=f"r{number}"), pixels=f"{number:064x}")
        for number in range(60):
            await it.tried(f"w{number:02}", verdict(H, score=0.55), pixels=f"{100 + number:064x}")
        ada = await it.person("ada")
        page = (await ada.get("/?label=HARMFUL")).text
        older = (await ada.get(re.search(r'href="(/\?[^"]*after=[^"]*)"', page)[1].replace("&amp;", "&"))).text
        return page, older

    page, older = play_pages(tmp_path, work, library=False)
    listed = [re.findall(r'href="/(?:trials|desk/cases)/(\w\d\d)"', text) for text in (page, older)]
    assert listed == [[f"t{number:02}" for number in range(51, 1, -1)], ["t01", "t00"]]
    assert "Trials that wait for your word are left out" in page and "w" not in re.findall('after=[^"]*', page)[0][-3:]
