"""The console over HTTP: access control, forms and sessions, contents of pages, and hardening."""

import asyncio
import contextlib
import io
import re
import sqlite3

import pytest
from PIL import Image, ImageChops, ImageStat
from starlette.routing import Route

from court.errors import Unavailable
from court.events import GuardHeard, QuestionRuled, ReviewOutcome, Summarised, TrialFailed
from court.question import OptionStrengths
from court.verdict import Label
from memecourt.verify import Violated, verify_bundle
from serving.access import tokens as token_file
from serving.console.app import PAGES, create_app
from serving.console.guard import POLICY
from serving.console.visitors import LONGEST_S, Role, Sessions
from serving.docket.store.bodies import packed, unpacked
from tests.support.consoles import (
    ConsoleVisitor,
    app_of,
    create_docket,
    form_proof_in,
    open_recording_docket,
    stable_page,
    tokens_for,
)
from tests.support.dockets import events_of
from tests.support.evidence import CLAIM, FINDINGS, REFUTING, Expert, FakeEvidence, try_with_expert
from tests.support.evidence import document as a_document
from tests.support.golden import assert_matches_golden
from tests.support.hostile_trials import PAYLOADS, hostile
from tests.support.html import ParsedPage
from tests.support.shown_trials import TEXT, DrawnPrecedents, drawn_picture, full_trial

ONE, HIDDEN = "one", "hidden"


def guarded_trial(trial_id, picture, **changes):
    """Returns the events of a trial in which a guard model was asked before the Judge."""
    *before, verdict_event = full_trial(trial_id, picture=picture)
    opinion = {"harmful": True, "categories": ("<b>hate</b>",), "reason": "It names <i>Blueland</i>."}
    guard_event = GuardHeard(
        trial_id=trial_id, seq=verdict_event.seq, at=verdict_event.at, adapter="llama-guard-4", **(changes or opinion)
    )
    return [*before, guard_event, verdict_event.model_copy(update={"seq": verdict_event.seq + 1})]


def questioned_trial(trial_id, picture, **ruling):
    """Returns the events of a trial whose Judge answered a further question, with markup in all untrusted texts."""
    events = full_trial(trial_id, picture=picture)
    question = {
        "id": "aim",
        "text": "Whom does it <b>attack</b>?",
        "options": ("<i>Blueland</i>", "nobody"),
        "several": True,
    }
    fields = {"trial_id": trial_id, "seq": len(events), "at": events[-1].at, "question": question}
    return [*events, QuestionRuled(**fields, **ruling)]


GONE_SOURCE = Unavailable("gone", reason="EVIDENCE_GONE")


def trial_with_claims(trial_id, picture, **source):
    """Returns the events of a trial in which an expert witness checked a claim, with markup in all untrusted texts."""
    found = a_document("<b>id</b>", f"<i>It is said:</i> {REFUTING}", source="<b>health</b>.example")
    claims = {"statements": [{**FINDINGS["statements"][0], "claim": f"<b>{CLAIM}</b>"}]}
    record, *_ = try_with_expert(Expert(claims=claims), FakeEvidence([found], **source))
    opened, *events = (event.model_copy(update={"trial_id": trial_id}) for event in record.events)
    meme = full_trial(trial_id, picture=picture)[0].meme
    return [opened.model_copy(update={"meme": meme}), *events]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A docket with trials: one open to all, one of another namespace, one failed, some with a guard or an expert."""
    picture = drawn_picture()
    failed = events_of("failed")[:2]
    failed.append(
        TrialFailed(
            trial_id="failed", seq=2, at=failed[1].at, step="judgment", reason="GONE", message="gone", retryable=True
        )
    )
    trials = [full_trial(ONE, picture=picture), full_trial(HIDDEN, picture=picture, namespace="closed"), failed]
    trials += [trial_with_claims("claims", picture), trial_with_claims("unchecked", picture, search_error=GONE_SOURCE)]
    trials += [guarded_trial("guarded", picture), guarded_trial("unguarded", picture, failure="MODEL_GONE")]
    strengths = {"<i>Blueland</i>": OptionStrengths(supporting="STRONG", opposing="WEAK")}
    strengths["nobody"] = OptionStrengths(supporting="WEAK", opposing="STRONG")
    answer = {"chosen": ("<i>Blueland</i>",), "strengths": strengths, "rationale": "It <script>names</script> them."}
    trials += [
        questioned_trial("answered", picture, **answer),
        questioned_trial("unanswered", picture, failure="MODEL_GONE"),
    ]
    return create_docket(tmp_path_factory.mktemp("docket") / "docket.sqlite", trials, [picture])


class Scene:
    def __init__(self, place, folder):
        self.tokens = tokens_for(folder)
        self.folder = folder
        self.docket = open_recording_docket(place)
        self.app = app_of(self.docket, folder)

    def visit(self, who=None, **options):
        return ConsoleVisitor(self.app, self.tokens[who] if who else None, **options)

    @property
    def recorded_views(self):
        return self.docket.reviews.looked


@pytest.fixture
def scene(place, tmp_path):
    made = Scene(place, tmp_path)
    yield made
    asyncio.run(made.docket.close())


def paths(trial_id=ONE):
    """Yields every page with each of its methods and an address that leads to it."""
    for page in PAGES:
        filled = re.sub(
            r"\{(\w+)(?::\w+)?\}", lambda m: {"trial_id": trial_id, "seq": "3", "frame": "0"}.get(m[1], "x"), page.path
        )
        for method in page.methods:
            yield page, method, filled


# Whole pages

SHOWN = (
    "/sign-in",
    "/",
    "/trials?q=label:harmful+is:decided&sort=-harm&col=label&col=trial",
    "/trials?q=lable:harmful",
    *(f"/trials/{name}" for name in (ONE, "claims", "failed")),
    f"/trials/{ONE}/messages/3",
    f"/trials/{ONE}/compare?with=guarded",
    "/nowhere",
)


def test_pages_match_the_golden_file(scene, request):
    visit = scene.visit("ada")
    text = "".join(f"== {path}\n{stable_page(visit.get(path).text)}" for path in SHOWN)
    assert_matches_golden("console.html", text, request)


def test_an_open_page_receives_evidence_as_it_arrives(scene):
    answer = scene.visit("ada").get("/trials/claims/news?from=4")
    assert answer.status_code == 200 and 'id="expert"' in answer.text and "hx-swap-oob" in answer.text


def test_pages_redirect_to_sign_in_unless_signed_in(scene):
    visit = scene.visit()
    protected = [(page, method, path) for page, method, path in paths() if page.role is not None]
    assert len(protected) > 8
    for _, method, path in protected:
        answer = visit.client.request(method, path, follow_redirects=False)
        assert answer.status_code == 303 and answer.headers["location"].startswith("/sign-in"), path
        assert TEXT.split(",")[0] not in answer.text


def test_every_route_is_a_page_with_a_role(scene):
    """A route mounted outside the registry would have no access check."""
    others = [route for route in scene.app.routes if not isinstance(route, Route)]
    assert [route.path for route in others] == ["/static"]
    assert {route.path for route in scene.app.routes if isinstance(route, Route)} == {page.path for page in PAGES}
    assert {page.path for page in PAGES if page.role is None} == {"/sign-in"}


def test_a_token_for_calls_signs_in_nowhere(scene):
    visit = scene.visit()
    assert visit.sign_in(scene.tokens["pipe"]).status_code == 403
    assert visit.sign_in("memecourt_guessed").status_code == 403
    assert visit.client.get("/", follow_redirects=False).status_code == 303


def test_revoking_a_token_ends_its_sessions(scene):
    visit = scene.visit("vera")
    assert visit.get(f"/trials/{ONE}").status_code == 200
    token_file.remove(scene.folder / "tokens.toml", "vera")
    tokens = scene.app.state.console.sessions._tokens
    tokens.use(((scene.folder / "tokens.toml").read_bytes(),))
    assert visit.client.get(f"/trials/{ONE}", follow_redirects=False).status_code == 303


def test_a_token_s_scope_changes_apply_to_open_sessions_at_once(scene):
    """Covers every page of the console, in a session opened before the change."""
    file = scene.folder / "tokens.toml"
    tokens = scene.app.state.console.sessions._tokens
    visit = scene.visit("ruth")
    proof = visit.proof
    protected = [(page, method, path) for page, method, path in paths() if page.role and page.path != "/sign-out"]

    def refused():
        codes = {}
        for page, method, path in protected:
            data = {"proof": proof} if method == "POST" else None
            answer = visit.client.request(method, path, data=data, follow_redirects=False)
            codes[method, page.path] = answer.status_code == 403
        return codes

    scopes = {"view": Role.VIEWER, "admin": Role.ADMIN, "review": Role.REVIEWER}
    text = file.read_text()
    own = text[text.index("ruth") :]
    for scope, role in scopes.items():
        file.write_text(text.replace(own, own.replace('"review"', f'"{scope}"', 1)))
        tokens.use((file.read_bytes(),))
        assert refused() == {(method, page.path): page.role > role for page, method, _ in protected}, scope
    file.write_text(text.replace(own, own.replace('"review"', '"judge"', 1)))
    tokens.use((file.read_bytes(),))
    assert visit.client.get("/", follow_redirects=False).status_code == 303, "a scope without pages ends the session"
    file.write_text(text)
    tokens.use((file.read_bytes(),))
    assert visit.client.get("/", follow_redirects=False).status_code == 303, "the ended session does not come back"


def test_pages_reject_methods_other_than_their_own(scene):
    """Checked without a session and with the highest role; HEAD counts as GET."""
    own = {}
    for page in PAGES:
        own.setdefault(page.path, set()).update(page.methods)
    for who in (None, "ada"):
        visit = scene.visit(who)
        for page, _, path in paths():
            for method in ("PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "HEAD", "POST", "GET"):
                if method in own[page.path]:
                    continue
                answer = visit.client.request(method, path, follow_redirects=False)
                if method == "HEAD" and "GET" in own[page.path]:
                    assert answer.status_code in (200, 303, 400, 404, 409, 503), (path, answer.status_code)
                    assert page.role is None or who or answer.status_code == 303, path
                else:
                    assert answer.status_code == 405, (method, path)
    assert scene.recorded_views == []


def test_sessions_end_after_idle_and_total_limits():
    now = [0.0]
    sessions = Sessions(None, now=lambda: now[0])
    id_, _ = sessions.open("")
    for _ in range(5):
        now[0] += 5 * 3600
        found = sessions.find(id_)
        assert (found is None) == (now[0] >= LONGEST_S)
    idle, _ = sessions.open("")
    now[0] += 8 * 3600
    assert sessions.find(idle) is None


def test_content_of_another_namespace_appears_not_to_exist(scene):
    """On every page that names a trial, even for the highest role, the answer equals that for an unknown trial."""
    token = token_file.add(scene.folder / "tokens.toml", "kept", ["admin"], ["forum"])
    scene.app.state.console.sessions._tokens.use(((scene.folder / "tokens.toml").read_bytes(),))
    visit = ConsoleVisitor(scene.app, token)
    assert visit.get(f"/trials/{ONE}").status_code == 200
    listed = visit.get("/").text
    assert f"/trials/{ONE}" in listed and f"/trials/{HIDDEN}" not in listed
    tried = 0
    for page, method, path in paths(HIDDEN):
        if "{trial_id}" in page.path:
            both = [
                visit.post(one) if method == "POST" else visit.get(one)
                for one in (path, path.replace(HIDDEN, "nowhere"))
            ]
            assert both[0].status_code == both[1].status_code and both[0].status_code in (400, 404), path
            tried += 1
    assert tried >= 7
    assert visit.get(f"/trials/{ONE}/compare?with={HIDDEN}").status_code == 404


# Sessions and forms


def test_a_planted_session_id_is_never_adopted(scene):
    """Session fixation: a cookie with an id known to an attacker is in the victim's browser before sign-in."""
    attacker = scene.visit()
    attacker.get("/sign-in")
    planted = attacker.client.cookies["memecourt_session"]
    taken = 0
    for id_ in (planted, "known-to-another", "", "../x", "a" * 4000):
        victim = scene.visit()
        victim.client.cookies.set("memecourt_session", id_)
        page = victim.client.get("/sign-in")
        victim.client.post(
            "/sign-in", data={"proof": form_proof_in(page.text), "token": scene.tokens["ruth"], "next": "/"}
        )
        assert victim.client.get("/", follow_redirects=False).status_code == 200
        other = scene.visit()
        other.client.cookies.set("memecourt_session", id_)
        taken += other.client.get("/", follow_redirects=False).status_code == 200
    assert taken == 0
    assert attacker.client.get("/", follow_redirects=False).status_code == 303


def test_signing_in_again_ends_the_previous_session(scene):
    visit = scene.visit("vera")
    old = visit.client.cookies["memecourt_session"]
    page = visit.client.get("/")
    visit.client.post("/sign-in", data={"proof": form_proof_in(page.text), "token": scene.tokens["ruth"], "next": "/"})
    assert visit.client.cookies["memecourt_session"] != old
    stale = scene.visit()
    stale.client.cookies.set("memecourt_session", old)
    assert stale.client.get("/", follow_redirects=False).status_code == 303


def test_signing_out_ends_the_session(scene):
    visit = scene.visit("vera")
    id_ = visit.client.cookies["memecourt_session"]
    visit.post("/sign-out")
    stale = scene.visit()
    stale.client.cookies.set("memecourt_session", id_)
    assert stale.client.get("/", follow_redirects=False).status_code == 303


def test_the_session_cookie_is_protected(scene):
    answer = scene.visit().client.get("/sign-in")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and "path=/" in cookie and "domain" not in cookie
    app = create_app(scene.docket, tokens=scene.app.state.console.sessions._tokens, origin="https://console.example")
    behind = ConsoleVisitor(app)
    answer = behind.client.get("/sign-in", headers={"host": "console.example"})
    assert answer.headers["set-cookie"].startswith("__Host-") and "secure" in answer.headers["set-cookie"].lower()


def test_no_form_without_a_valid_proof_is_accepted(scene):
    """CSRF: posts to every changing page with missing or wrong proofs, and from other sites."""
    visit, other = scene.visit("ada"), scene.visit("ada")
    proof = visit.proof
    changing = [path for page, method, path in paths() if method == "POST"]
    assert len(changing) >= 3
    refused = 0
    for path in changing:
        for data, headers in (
            ({}, {}),
            ({"proof": ""}, {}),
            ({"proof": "0" * 64}, {}),
            ({"proof": proof[:-1]}, {}),
            ({"proof": other.proof}, {}),
            ({}, {"x-memecourt-proof": other.proof}),
            ({"proof": proof}, {"origin": "https://evil.example"}),
            ({"proof": proof}, {"origin": "null"}),
            ({"proof": proof}, {"sec-fetch-site": "cross-site"}),
            ({"proof": proof}, {"sec-fetch-site": "same-site"}),
        ):
            answer = visit.client.post(path, data=data, headers=headers, follow_redirects=False)
            assert answer.status_code == 403, (path, data, headers)
            refused += 1
        for kind in ("text/plain", "application/json", "multipart/form-data; boundary=x"):
            answer = visit.client.post(path, content=f"proof={proof}", headers={"content-type": kind})
            assert answer.status_code == 400, (path, kind)
            refused += 1
    assert refused == 13 * len(changing)
    assert scene.recorded_views == [], "nothing was done"
    assert visit.get("/").status_code == 200, "nobody was signed out"


def test_form_size_and_field_count_are_limited(scene):
    visit = scene.visit("vera")
    assert visit.post(f"/trials/{ONE}/show", {"of": "x" * 70_000}).status_code == 400
    many = {f"f{number}": "" for number in range(300)}
    assert visit.post(f"/trials/{ONE}/show", many).status_code == 400


@pytest.mark.parametrize(
    "onward",
    [
        "https://evil.example",
        "//evil.example",
        "/\\evil.example",
        "\\\\evil",
        "javascript:alert(1)",
        "/a\nb",
        "/\t/evil",
        "",
        "x",
    ],
)
def test_signing_in_never_redirects_to_another_site(scene, onward):
    visit = scene.visit()
    page = visit.client.get("/sign-in", params={"next": onward})
    data = {"proof": form_proof_in(page.text), "token": scene.tokens["vera"], "next": onward}
    answer = visit.client.post("/sign-in", data=data, follow_redirects=False)
    assert answer.headers["location"] == "/overview"


def test_a_link_from_another_site_is_followed_by_a_second_request(scene):
    """Browsers withhold the cookie on cross-site navigation; our own page then repeats the request."""
    visit = scene.visit("vera")
    cookie = visit.client.cookies["memecourt_session"]
    visit.client.cookies.clear()
    elsewhere = {"sec-fetch-site": "cross-site"}
    answer = visit.client.get(f"/trials/{ONE}", headers=elsewhere)
    assert 'http-equiv="refresh"' in answer.text and "set-cookie" not in answer.headers
    onward = re.search(r"url=([^\"]+)", answer.text)[1].replace("&amp;", "&")
    visit.client.cookies.set("memecourt_session", cookie)
    assert visit.client.get(onward).url.path == f"/trials/{ONE}"


def test_foreign_host_names_are_rejected(scene):
    """DNS rebinding: another site's name that resolves to this machine."""
    app = create_app(scene.docket, tokens=None)
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "a b", "[::1", "2130706433"):
        assert ConsoleVisitor(app).client.get("/sign-in", headers={"host": host}).status_code == 421, host
    for host in ("127.0.0.1:8080", "localhost", "[::1]:8080"):
        assert ConsoleVisitor(app).client.get("/sign-in", headers={"host": host}).status_code == 200, host


def test_without_tokens_only_local_binding_is_allowed(scene):
    with pytest.raises(ValueError, match="this machine"):
        create_app(scene.docket, tokens=None, host="0.0.0.0")
    visit = ConsoleVisitor(create_app(scene.docket, tokens=None))
    assert "administrator" in visit.get("/").text
    visit.sign_in("")
    assert "local" in visit.get("/").text


# Headers of every answer, and paths that lead nowhere


def test_every_answer_has_the_security_headers(scene):
    visit = scene.visit("vera")
    paths_ = [
        "/",
        f"/trials/{ONE}",
        "/nowhere",
        "/static/console.css",
        "/static/nowhere",
        "/sign-in",
        f"/trials/{ONE}/picture",
    ]
    for path in paths_:
        headers = visit.get(path).headers
        assert headers["content-security-policy"] == POLICY and headers["x-content-type-options"] == "nosniff", path
        assert headers["x-frame-options"] == "DENY" and "cache-control" in headers
        assert "server" not in headers and "strict-transport-security" not in headers
        secure = visit.client.get(f"https://testserver{path}", follow_redirects=False).headers
        assert secure["strict-transport-security"] == "max-age=31536000"
    assert visit.get(f"/trials/{ONE}").headers["cache-control"] == "no-store"
    assert "unsafe" not in POLICY and "http" not in POLICY and "*" not in POLICY


def test_pages_contain_no_inline_script_or_style_and_no_external_address(scene):
    visit = scene.visit("ada")
    for path in ("/", f"/trials/{ONE}", f"/trials/{ONE}/compare?with=hidden", "/trials/failed", "/sign-in"):
        page = visit.get(path).text
        assert not re.search(r"<script(?![^>]* src=\"/static/)", page) and "<style" not in page, path
        assert not re.search(r"\s(style|on\w+)=", page), path
        assert not re.search(r"(?:src|href|action|hx-get|hx-post)=\"(?![/#?])", page), path


PATH_GAMES = [
    game.replace("F", target)
    for target in ("app.py", "../app.py", "../../settings.py", "etc/passwd", "console.css%00.py")
    for game in (
        "/static/../F", "/static/..%2fF", "/static/%2e%2e/F", "/static/%2e%2e%2fF", "/static/..%5cF", "/static/....//F",
        "/static//F", "/static/%252e%252e%252fF", "/static/.%00./F", "/trials/../static/../F", "/trials/%2e%2e%2fF",
        "/trials/%00/picture", "/trials/..%2f..%2fF/picture", "/trials/one/picture?of=../F",
        "/trials/one/picture?of=precedent:../F",
        "/trials/one/picture?frame=../F", "/trials/one/sharp/..%2fF/0", "/trials/one/messages/..%2fF",
        "/%2e%2e/%2e%2e/F", "//F",
    )
]  # fmt: skip


def test_path_games_lead_nowhere(scene):
    visit = scene.visit("ada")
    assert len(PATH_GAMES) == 100
    for path in PATH_GAMES:
        request = visit.client.build_request("GET", "http://127.0.0.1/")
        request.url = request.url.copy_with(raw_path=path.encode())
        answer = visit.client.send(request)
        assert answer.status_code in (200, 303, 400, 404, 405), (path, answer.status_code)
        for leak in ("create_app", "root:", "class Settings", "Traceback"):
            assert leak not in answer.text, path


def test_internal_errors_reveal_no_details(scene, monkeypatch):
    async def broken(*_, **__):
        raise RuntimeError("secret-detail at 0x7f00")

    monkeypatch.setattr(scene.docket.trials, "record", broken)
    answer = ConsoleVisitor(scene.app, scene.tokens["vera"], raise_server_exceptions=False).get(f"/trials/{ONE}")
    assert answer.status_code == 500 and "secret-detail" not in answer.text
    assert answer.headers["content-security-policy"] == POLICY


# Pictures


def test_a_sharp_picture_is_served_once_and_only_after_being_recorded(scene):
    visit = scene.visit("vera")
    sharp = drawn_picture().frames[0].png
    page = visit.get(f"/trials/{ONE}").text
    assert "/sharp/" not in page and "data:" not in page
    assert all(visit.get(path).content != sharp for _, method, path in paths() if method == "GET")
    assert scene.recorded_views == []
    shown = visit.post(f"/trials/{ONE}/show", {"of": "meme"})
    address = re.search(r'src="([^"]*/sharp/[^"]*)"', shown.text)[1]
    assert [(one["who"], one["trial_id"], one["what"]) for one in scene.recorded_views] == [("vera", ONE, "meme")]
    assert scene.visit("vera").get(address).status_code == 404, "for another session"
    assert visit.get(address.replace(f"/{ONE}/", f"/{HIDDEN}/")).status_code == 404, "for another trial"
    assert visit.get(address).content == sharp
    assert visit.get(address).status_code == 404, "only once"
    assert "/sharp/" not in visit.get(str(shown.url)).text, "not repeated by reopening the page"
    visit.post(f"/trials/{ONE}/show", {"of": "precedent:starter-014"}, headers={"hx-request": "true"})
    assert scene.recorded_views[-1]["what"] == "precedent:starter-014"


def test_a_picture_is_not_shown_if_the_view_cannot_be_recorded(scene):
    visit = scene.visit("vera")
    scene.docket.reviews.refuses = Unavailable("The docket can't be written now.")
    answer = visit.post(f"/trials/{ONE}/show", {"of": "meme"})
    assert answer.status_code == 503 and "/sharp/" not in answer.text


def test_pictures_outside_the_trial_cannot_be_requested(scene):
    visit = scene.visit("ada")
    for target in ("precedent:starter-999", "precedent:", "other", "../x", "meme\0"):
        assert visit.post(f"/trials/{ONE}/show", {"of": target}).status_code in (400, 404), target
    assert scene.recorded_views == []


def test_a_veiled_picture_reveals_no_detail(scene):
    """Only twenty pixels' worth of detail remains; two captions of equal length look almost the same."""
    visit = scene.visit("vera")
    answer = visit.get(f"/trials/{ONE}/picture")
    veiled = Image.open(io.BytesIO(answer.content))
    assert veiled.mode == "L" and max(veiled.size) <= 160
    small = veiled.resize((20, 15), Image.Resampling.BOX)
    again = small.resize(veiled.size, Image.Resampling.BICUBIC)
    assert ImageStat.Stat(ImageChops.difference(veiled, again)).mean[0] < 4, "no further detail remains"
    sharp = Image.open(io.BytesIO(drawn_picture().frames[0].png)).convert("L").resize(veiled.size)
    assert ImageStat.Stat(ImageChops.difference(veiled, sharp)).mean[0] > 12, "the sharp picture has detail"


# Contents


def test_fragment_links_lead_to_ids_on_the_page(scene):
    for trial in (ONE, "failed", HIDDEN):
        page = scene.visit("vera").get(f"/trials/{trial}").text
        ids = set(re.findall(r'\sid="([^"]+)"', page))
        assert len(re.findall(r'\sid="', page)) == len(ids), "ids are unique"
        assert set(re.findall(r'href="#([^"]+)"', page)) <= ids


def test_messages_say_if_they_are_exact(scene):
    visit = scene.visit("vera")
    page = visit.get(f"/trials/{ONE}/messages/3").text
    assert "System message" in page and "Describe the picture" in page
    assert "nobody can say whether these are the same" in page
    assert "No model was asked here" in visit.get(f"/trials/{ONE}/messages/0").text


def with_altered_event(events, kind, **changes):
    """Returns the same trial with one event altered, as if read from a tampered docket."""
    altered = False
    copied = []
    for event in events:
        if isinstance(event, kind) and not altered:
            event, altered = event.model_copy(update=changes), True
        copied.append(event)
    assert altered
    return copied


def test_values_that_differ_from_a_recomputation_are_marked(tmp_path, place):
    """Entropy, its change, why a side stopped, the vote: each, altered alone, is shown beside the recomputed value."""
    from court.events import PrecedentsCited, QuestioningEnd, SideRested

    events = full_trial(ONE, picture=drawn_picture())
    vote = next(e for e in events if isinstance(e, PrecedentsCited)).vote
    altered = {
        "entropy": with_altered_event(events, Summarised, entropy=2.5),
        "change": with_altered_event(events[::-1], Summarised, entropy_change=0.5)[::-1],
        "rested": with_altered_event(events, SideRested, reason=QuestioningEnd.TIME),
        "vote": with_altered_event(events, PrecedentsCited, vote=vote.model_copy(update={"probability": 0.9})),
    }
    trials = [[e.model_copy(update={"trial_id": name}) for e in events_] for name, events_ in altered.items()]
    docket = open_recording_docket(create_docket(tmp_path / "docket.sqlite", trials))
    tokens = tokens_for(tmp_path)
    visit = ConsoleVisitor(app_of(docket, tmp_path), tokens["vera"])
    for name, expected in (
        ("entropy", "2.5000 bit"),
        ("change", "0.5000 bit"),
        ("rested", "time after round 2"),
        ("vote", "0.900"),
    ):
        page = visit.get(f"/trials/{name}").text
        assert "does not agree with itself" in page and "Comes out otherwise" in page and expected in page, name
    asyncio.run(docket.close())


def test_an_intact_trial_shows_no_mismatch(scene):
    for trial in (ONE, HIDDEN):
        assert "agree with itself" not in scene.visit("vera").get(f"/trials/{trial}").text


def tamper_with(place, *changes):
    """Edits the database file: each change is a kind of event, a text in its body, and the replacement."""
    with contextlib.closing(sqlite3.connect(place)) as database, database:
        for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            database.execute(f'DROP TRIGGER "{name}"')
        for kind, old, new in changes:
            number, body = database.execute("SELECT number, body FROM entries WHERE kind = ?", (kind,)).fetchone()
            text = unpacked(body)
            assert old in text
            database.execute("UPDATE entries SET body = ? WHERE number = ?", (packed(text.replace(old, new)), number))


def a_visit_to(tmp_path, *changes):
    docket_path = create_docket(
        tmp_path / "docket.sqlite", [full_trial(ONE, picture=drawn_picture())], [drawn_picture()]
    )
    tamper_with(docket_path, *changes)
    docket = open_recording_docket(docket_path)
    tokens = tokens_for(tmp_path)
    return docket, ConsoleVisitor(app_of(docket, tmp_path), tokens["vera"])


def test_entries_are_verified_against_the_log(tmp_path):
    docket, visit = a_visit_to(tmp_path)
    page = visit.get(f"/trials/{ONE}").text
    assert "entries verified against the docket’s signed checkpoint" in page and "altered" not in page
    visit.post(f"/trials/{ONE}/show", {"of": "meme"})
    page = visit.get(f"/trials/{ONE}").text
    assert "Views" in page and "vera" in page
    asyncio.run(docket.close())


def test_a_trial_is_exported_with_its_proofs(tmp_path):
    docket, visit = a_visit_to(tmp_path)
    visit.post(f"/trials/{ONE}/show", {"of": "meme"})
    answer = visit.get(f"/trials/{ONE}/bundle")
    assert answer.headers["content-disposition"].startswith("attachment")
    key = asyncio.run(docket.log.vkey())
    trial = verify_bundle(answer.text, [key])
    assert trial.trial_id == ONE and "vera" not in answer.text
    with pytest.raises(Violated):
        verify_bundle(answer.text.replace("grey cat", "black cat"), [key])
    asyncio.run(docket.close())


def test_reading_pages_writes_nothing_into_the_log(scene):
    visit = scene.visit("vera")
    before = asyncio.run(scene.docket.log.size())
    for page, method, path in paths():
        if method == "GET" and page.role is Role.VIEWER:
            visit.get(path)
    assert asyncio.run(scene.docket.log.size()) == before


def test_an_altered_record_is_marked_at_once(tmp_path):
    docket, visit = a_visit_to(tmp_path, ("Described", "grey cat", "black cat"))
    page = visit.get(f"/trials/{ONE}").text
    assert "This record was altered." in page and "black cat" in page
    assert page.count('class="log-entry wrong"') == 1
    asyncio.run(docket.close())


def test_a_label_against_the_rule_is_shown_with_the_broken_rule(tmp_path):
    """The verdict can no longer be parsed: the page shows what is stored and why it is invalid."""
    label = ('"label":"NOT_HARMFUL"', '"label":"HARMFUL"')
    docket, visit = a_visit_to(tmp_path, ("VerdictGiven", *label))
    page = visit.get(f"/trials/{ONE}").text
    assert "This record can’t be read" in page and "This record was altered." in page
    assert "HARMFUL does not follow from" in page and "strengths/1" in page
    asyncio.run(docket.close())


def test_an_erased_record_shows_only_the_erasure(tmp_path):
    docket, visit = a_visit_to(tmp_path)
    visit.get("/")
    asyncio.run(docket.eraser.erase(ONE, who="ada", why="asked for", at=full_trial(ONE)[0].at))
    page = visit.get(f"/trials/{ONE}").text
    assert "This record was erased" in page and "ada" in page and "asked for" in page and "verified against" in page
    assert "Monday" not in page and "grey cat" not in page
    token = token_file.add(tmp_path / "tokens.toml", "kept", ["view"], ["forum"])
    visit.client.app.state.console.sessions._tokens.use(((tmp_path / "tokens.toml").read_bytes(),))
    assert ConsoleVisitor(visit.client.app, token).get(f"/trials/{ONE}").status_code == 404
    asyncio.run(docket.close())


def test_two_trials_are_compared(scene):
    page = scene.visit("ada").get(f"/trials/{ONE}/compare?with={HIDDEN}").text
    assert "Two trials of one meme" in page
    other = full_trial(
        "x", picture=drawn_picture(), label=Label.HARMFUL, model="another-model", rationale="The flag decides it."
    )
    from court.record import TrialRecord
    from serving.views.compare import compare

    groups = {
        g.name: g for g in compare(TrialRecord.of(full_trial("y", picture=drawn_picture())), TrialRecord.of(other))
    }
    differ = {row.name for group in groups.values() for row in group.rows if not row.same}
    assert {"label", "evidence of harm", "benign evidence", "rationale", "model of the judge"} <= differ
    assert not groups["Meme"].differing and not groups["Settings"].differing
    row = next(row for row in groups["Verdict"].rows if row.name == "rationale")
    assert "".join(piece for piece, _ in row.pieces[0]) == row.left
    assert "".join(piece for piece, _ in row.pieces[1]) == row.right


# Untrusted text


def elements_of(page):
    """Returns a page's elements without links of the rationale and others whose number depends on the text."""
    # Details that are open from the start are not another element.
    found = [(tag, tuple(sorted(set(names) - {"open"}))) for tag, names, _ in ParsedPage(page).tags if tag != "mark"]
    return [one for one in found if one[0] not in ("br", "span") and one != ("a", ("class", "href", "title"))]


def test_a_hundred_payloads_become_no_markup(tmp_path):
    """PR-2: with markup in every text and id a page consists of the same elements as with plain words."""
    assert len(PAYLOADS) == len(set(PAYLOADS)) == 101
    groups = [PAYLOADS[first : first + 10] for first in range(0, len(PAYLOADS), 10)]
    trials = [hostile("plain", [f"word{n}" for n in range(10)])]
    trials += [hostile(f"h{number}", group) for number, group in enumerate(groups)]
    docket = open_recording_docket(create_docket(tmp_path / "docket.sqlite", trials, [drawn_picture()]))
    tokens = tokens_for(tmp_path)
    visit = ConsoleVisitor(app_of(docket, tmp_path), tokens["ada"])
    for reviewed in ("plain", "h0"):
        reason = "words" if reviewed == "plain" else PAYLOADS[0]
        asyncio.run(
            docket.reviews.review(
                reviewed, outcome=ReviewOutcome.OVERRULED, label=Label.HARMFUL, reason=reason, clause=reason,
                reviewer=reason, at=trials[0][0].at,
            )
        )  # fmt: skip
    pages = ("/trials/{}", "/trials/{}/news?from=0", "/trials/{}/compare?with={}", "/trials/{}/messages/3", "/")
    plain = {path: set(elements_of(visit.get(path.replace("{}", "plain")).text)) for path in pages}
    foreign = 0
    for number in range(len(groups)):
        for path in pages:
            page = visit.get(path.replace("{}", f"h{number}")).text
            strange = [one for one in elements_of(page) if one not in plain[path]]
            assert strange == [], path
            foreign += len(strange)
            # Nor may attributes contain anything that our own script would execute.
            assert "__xss" not in re.sub(r">[^<]*<|\s[\w-]+=\"[^\"]*\"", "><", page)
    assert foreign == 0
    asyncio.run(docket.close())


def test_a_picture_other_than_the_judged_one_is_marked(tmp_path):
    """Checked for the meme in the docket and for a precedent in the library."""
    place = create_docket(tmp_path / "docket.sqlite", [full_trial(ONE, picture=drawn_picture())], [drawn_picture()])
    (stored_file,) = [
        path for path in tmp_path.rglob("*") if path.is_file() and drawn_picture().pixels_sha256 in path.as_posix()
    ]
    tokens = tokens_for(tmp_path)
    marked = []
    for frame in (drawn_picture().frames[0].png, drawn_picture("coffee", "another").frames[0].png, b"no picture"):
        stored_file.write_bytes(frame)
        docket = open_recording_docket(place)
        marked.append(
            "Another picture." in ConsoleVisitor(app_of(docket, tmp_path), tokens["vera"]).get(f"/trials/{ONE}").text
        )
        asyncio.run(docket.close())
    assert marked == [False, True, True]

    class Other:
        async def pictures(self, ids):
            return [drawn_picture("coffee", "another").frames[0] for _ in ids]

    docket = open_recording_docket(place)
    for pictures, other in ((DrawnPrecedents(), False), (Other(), True)):
        visit = ConsoleVisitor(app_of(docket, tmp_path, pictures=pictures), tokens["vera"])
        answer = visit.post(f"/trials/{ONE}/show", {"of": "precedent:starter-014"}, headers={"hx-request": "true"})
        assert ("Another picture now" in answer.text) is other
        plain = visit.post(f"/trials/{ONE}/show", {"of": "precedent:starter-014"})
        assert ("Another picture now" in plain.text) is other, "also without JavaScript"
    asyncio.run(docket.close())
