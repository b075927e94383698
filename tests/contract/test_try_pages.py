"""Tries in the console: off the record, and as guarded as any request."""

import re
import socket
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from importlib.resources import files
from urllib.parse import urlencode

import httpx2

from court.errors import BadRequest
from court.events import Procedure, ReviewOutcome
from court.record import TrialState
from court.verdict import Label
from memecourt.aio import AsyncClient
from serving.access import tokens as token_file
from serving.access.callers import SANDBOX, Scope
from serving.access.tokens import Tokens
from serving.cli.remote_court import RETRIES, RemoteCourt
from serving.console.app import create_app
from serving.console.pages.trying import _examples
from serving.console.registry import Reviewing, Trying
from serving.docket.errors import TrialErased
from serving.docket.retention import erase_expired, retention_periods
from serving.docket.review.projection import Rules
from serving.judging.request import TrialRequest
from serving.settings import Settings
from tests.support.desk_pages import Person, form_of, page_text
from tests.support.encoders import picture_of, png_of
from tests.support.playing import run_within
from tests.support.real_court import IMAGE, real_court

PEOPLE = {
    "ada": ([Scope.VIEW, Scope.JUDGE], None),
    "vic": ([Scope.VIEW], None),
    "forum": ([Scope.VIEW, Scope.JUDGE], ["forum"]),
    "both": ([Scope.VIEW, Scope.JUDGE], ["forum", SANDBOX]),
    "ruth": ([Scope.REVIEW], None),
}


ANIMATION = b"GIF89a, two frames"


class Frames:
    """Reads a picture, and an animation of two frames."""

    async def read(self, data):
        if data != ANIMATION:
            return picture_of(data)
        pictures = [picture_of(png_of(colour)) for colour in ((250, 5, 5), (5, 250, 5))]
        frames = tuple(replace(one.frames[0], index=number) for number, one in enumerate(pictures))
        return replace(pictures[0], bytes_sha256=sha256(data).hexdigest(), frame_count=2, frames=frames)


class Pages:
    def __init__(self, court, app, tokens, stack):
        self.court, self.docket, self.app, self.tokens, self.stack = court, court.docket, app, tokens, stack

    async def person(self, name):
        client = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=self.app), base_url="http://127.0.0.1:8080")
        person = Person(await self.stack.enter_async_context(client), self.tokens[name])
        await person.sign_in()
        return person

    async def tries(self, person, *, picture=IMAGE, page="/try", **fields):
        """Sends the form of the page, as a browser does."""
        proof = re.search(r'name="proof" value="(\w+)"', (await person.get(page)).text)[1]
        files = {"picture": ("meme.png", picture, "image/png")}
        return await person.client.post("/try", data={"proof": proof, "procedure": "SUMMARY", **fields}, files=files)


@asynccontextmanager
async def try_pages(path, *, trying=True, remote=False, **options):
    async with AsyncExitStack() as stack:
        court = await stack.enter_async_context(real_court(path, **options))
        file = path / "tokens.toml"
        tokens = {name: token_file.add(file, name, scopes, names) for name, (scopes, names) in PEOPLE.items()}
        here = Trying(court.court.start, [Procedure.SUMMARY])
        if remote:
            address = court.address if remote is True else remote
            client = await stack.enter_async_context(AsyncClient(address, retries=RETRIES))
            here = RemoteCourt(client, court.docket.trials).trying
        app = create_app(
            court.docket,
            tokens=Tokens.of(file),
            # Every verdict is drawn, except of tries.
            reviewing=Reviewing(court.docket.review_queue(Rules(sampled=1.0))),
            trying=here if trying else None,
        )
        yield Pages(court, app, tokens, stack)


def play(path, work, **options):
    return run_within(try_pages(path, **options), work)


def id_of(answer):
    assert answer.status_code == 303, answer.text
    return answer.headers["location"].removeprefix("/trials/")


def test_a_try_is_tried_without_a_trace_and_erased_after_a_day(tmp_path):
    async def work(it):
        ada, ruth = await it.person("ada"), await it.person("ruth")
        first, second = [id_of(await it.tries(ada)) for _ in range(2)]
        text = id_of(await it.tries(ada, picture=b"", text="Monday people"))
        record = await it.docket.trials.record(first)
        page = page_text(await ada.get(f"/trials/{first}"))
        assert "Review this trial" not in page_text(await ruth.get(f"/trials/{first}"))
        lists = [page_text(await ruth.get(path)) for path in ("/trials", "/desk")]
        exported = (await ruth.get("/export/jsonl")).text
        asked_for = page_text(await ruth.get("/trials?q=namespace:sandbox"))
        refused = await it.refusal(first)
        waiting = (await it.docket.reviews.awaiting_review()).count
        periods = retention_periods(Settings(namespaces={SANDBOX: {"retention_days": "unlimited"}}))
        now = record.opened.at
        early = await erase_expired(it.docket, periods, now=now + timedelta(hours=23))
        gone = await erase_expired(it.docket, periods, now=now + timedelta(hours=25))
        try:
            await it.docket.trials.record(first)
        except TrialErased:
            return first, second, text, record, page, lists, exported, asked_for, refused, waiting, early, gone
        raise AssertionError("it is still there")

    async def refusal(it, trial_id):
        try:
            await it.docket.reviews.review(
                trial_id,
                outcome=ReviewOutcome.OVERRULED,
                label=Label.HARMFUL,
                reason="r",
                clause="4",
                reviewer="ruth",
                at=datetime.now(UTC),
            )
        except BadRequest as error:
            return error.message

    Pages.refusal = refusal
    first, second, text, record, page, lists, exported, asked_for, refused, waiting, early, gone = play(tmp_path, work)
    assert record.state is TrialState.DECIDED and record.opened.meme.namespace == SANDBOX
    assert len({first, second, text}) == 3, "a try is never answered by another"
    assert "A try, off the record" in page and "Put on record" in page
    assert "No trial yet" in lists[0] and "No case is waiting" in lists[1]
    assert exported == "" and "sandbox" in asked_for and waiting == 0
    assert refused is not None and "Put it on record first" in refused
    assert not early.erased and gone.erased[SANDBOX] == 3


async def test_a_try_put_on_record_is_a_trial_of_its_own(tmp_path):
    async with try_pages(tmp_path) as it:
        both = await it.person("both")
        tried = id_of(await it.tries(both))
        refused = [
            (await both.post(f"/trials/{tried}/put-on-record", {"namespace": name}, page="/try")).status_code
            for name in ("other", SANDBOX)
        ]
        recorded = id_of(await both.post(f"/trials/{tried}/put-on-record", {"namespace": "forum"}, page="/try"))
        again = await both.post(f"/trials/{recorded}/put-on-record", {"namespace": "forum"}, page="/try")
        tried = await it.docket.trials.record(tried)
        recorded = await it.docket.trials.record(recorded)
        again = again.status_code
    assert refused == [403, 400] and again == 400
    assert recorded.opened.meme.namespace == "forum" and recorded.trial_id != tried.trial_id
    assert recorded.opened.meme.pixels_sha256 == tried.opened.meme.pixels_sha256


async def test_a_try_needs_scope_namespace_and_a_form_of_this_console(tmp_path):
    async with try_pages(tmp_path) as it:
        found = {}
        for name in ("vic", "forum"):
            person = await it.person(name)
            found[name] = page_text(await person.get("/try")), (await it.tries(person, page="/trials")).status_code
        ada = await it.person("ada")
        files = {"picture": ("meme.png", IMAGE, "image/png")}
        forged = await ada.client.post("/try", data={"procedure": "SUMMARY"}, files=files)
        wrong = [
            await it.tries(ada, picture=b""),
            await it.tries(ada, picture=b"no picture"),
            await it.tries(ada, procedure="MAYBE"),
            await it.tries(ada, procedure="FULL"),
            await it.tries(ada, text="x" * 70_000),
            await it.tries(ada, picture=b"0" * (40 << 20)),
        ]
        forged, lines = forged.status_code, await it.docket.index.list(limit=10)
    assert "no scope judge" in found["vic"][0] and "not for content of that namespace" in found["forum"][0]
    assert [found[name][1] for name in found] == [403, 403] and forged == 403
    assert [answer.status_code for answer in wrong] == [400, 400, 400, 503, 400, 400]
    assert all('role="alert"' in answer.text for answer in wrong[:4]) and not lines


async def test_a_console_without_a_court_says_so_and_offers_drawn_examples(tmp_path):
    async with try_pages(tmp_path, trying=False) as it:
        ada = await it.person("ada")
        page, code = await ada.get("/try"), (await it.tries(ada, page="/trials")).status_code
        pictures = [await ada.get(path) for path in re.findall(r'src="(/try/examples/\w+)"', page.text)]
        page, unknown = page_text(page), (await ada.get("/try/examples/dog")).status_code
    assert "This console has no court" in page and code == 400 and unknown == 404
    assert (
        "Drawn examples to read" in page
        and "6 of the 25 nearest labelled memes were harmful: found not harmful." in page
    )
    assert "No labelled meme is near enough to compare it with: undecided." in page
    assert [answer.headers["content-type"] for answer in pictures] == ["image/png"] * 3


def test_drawn_examples_are_the_memes_that_are_shown_with_them():
    for name, record in _examples().items():
        picture = files("retrieval.starter").joinpath("demo", f"{name}.png").read_bytes()
        assert record.opened.meme.bytes_sha256 == sha256(picture).hexdigest()


async def test_a_console_apart_from_its_court_tries_through_the_client(tmp_path):
    async with try_pages(tmp_path, remote=True) as it:
        both = await it.person("both")
        tried = id_of(await it.tries(both))
        refused = await it.tries(both, picture=b"no picture")
        lacking = await it.tries(both, procedure="FULL")
        recorded = id_of(await both.post(f"/trials/{tried}/put-on-record", {"namespace": "forum"}, page="/try"))
        tried, recorded = await it.docket.trials.record(tried), await it.docket.trials.record(recorded)
    assert tried.state is TrialState.DECIDED and tried.opened.meme.namespace == SANDBOX
    assert recorded.opened.meme.namespace == "forum"
    assert refused.status_code == 400 and "That is no picture." in page_text(refused)
    assert lacking.status_code == 503 and 'role="alert"' in lacking.text


async def test_a_console_says_that_its_court_is_not_reached(tmp_path):
    with socket.socket() as unheard:  # bound, and listened on by nobody
        unheard.bind(("127.0.0.1", 0))
        async with try_pages(tmp_path, remote=f"127.0.0.1:{unheard.getsockname()[1]}") as it:
            answer = await it.tries(await it.person("ada"))
    assert answer.status_code == 503 and "The court can't be reached" in page_text(answer).replace("’", "'")


async def test_an_animation_is_put_on_record_with_its_file_sent_again(tmp_path):
    async with try_pages(tmp_path, pictures=Frames()) as it:
        both = await it.person("both")
        tried = id_of(await it.tries(both, picture=ANIMATION))
        path = f"/trials/{tried}/put-on-record"
        page = (await both.get(f"/trials/{tried}")).text
        proof = re.search(r'name="proof" value="(\w+)"', page)[1]
        fields = {"proof": proof, "namespace": "forum"}
        without = await both.client.post(path, data=fields)
        other, same = [
            await both.client.post(path, data=fields, files={"picture": ("meme.gif", file, "image/gif")})
            for file in (IMAGE, ANIMATION)
        ]
        recorded = await it.docket.trials.record(id_of(same))
    assert 'type="file"' in page.partition("put-on-record")[2].partition("</form>")[0]
    assert without.status_code == other.status_code == 400 and "another file" in page_text(other)
    assert recorded.opened.meme.namespace == "forum" and recorded.opened.meme.frame_count == 2


async def test_tries_take_a_small_share_of_the_admission(tmp_path):
    async with try_pages(tmp_path) as it:
        runner = it.court.reception
        async with runner._tries.acquire(SANDBOX), runner.admission.acquire("forum"):
            request = TrialRequest(IMAGE, text="x", namespace="forum")
            answered = await runner.answer(request, within_s=60)
            state, tries, most = answered.record.state, runner._tries._most, runner.admission._most
    assert state is TrialState.DECIDED and tries == max(1, most // 8) < most


async def test_odd_words_break_no_page(tmp_path):
    async with try_pages(tmp_path) as it:
        ada = await it.person("ada")
        trial_id = id_of(await it.tries(ada, text="a kitten sleeps"))
        broken = []
        for odd in ("\0", "a\0b", "\u202e", "\ud800", "x" * 20_000, "\ufdfa" * 3000, "<script>", "SUMMARY", "-1"):
            for path in ("/try", f"/trials/{trial_id}/put-on-record"):
                page = (await ada.get("/try")).text
                words = dict.fromkeys(("text", "procedure", "namespace"), odd)
                words |= {"procedure": "SUMMARY"} if path == "/try" else {}
                body = urlencode(words, errors="surrogatepass")
                form = form_of(page, {})
                answer = await ada.client.post(path, **{**form, "content": f"{form['content']}&{body}"})
                if answer.status_code >= 500:
                    broken.append((path[-9:], odd[:9], answer.status_code))
        assert broken == []
