"""Console and HTTP under a path of a site, behind the real nginx of docs/proxies.md."""

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urljoin, urlsplit

import httpx2
import pytest

import serving.console
from court.verdict import Label
from serving.console.registry import Reviewing
from serving.settings import Settings
from serving.wiring import rules_of
from tests.support.consoles import create_docket, form_proof_in, running_console, tokens_for
from tests.support.html import ParsedPage
from tests.support.nginx import free_port, nginx
from tests.support.real_court import IMAGE, real_court
from tests.support.shown_trials import drawn_picture, full_trial

PATH = "/court"
ATTRIBUTES = {"href", "src", "action", "formaction", "hx-get", "hx-post"}
FOLLOWED = {"href", "src", "hx-get"}
"""Those of them that links and pictures lead to."""
HARD = re.compile(r"""(?<!~ )["'`]/(?=[a-z?"'`])|url[=(]["']?/""")
"""An address that begins with a slash alone, in a template or a script."""


def addresses_on(page, names=ATTRIBUTES):
    """Returns the addresses that attributes of a page name."""
    found = [item for _, attributes, _ in ParsedPage(page).tags for item in attributes.items()]
    return [value for name, value in found if name in names and not value.startswith("#")]


@pytest.fixture(scope="module", params=["passed on", "taken off"])
def site(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    picture = drawn_picture()
    trials = [
        full_trial("one", picture=picture),
        full_trial("a b", picture=picture, label=Label.HARMFUL, model="another-model"),
        full_trial("open", picture=picture)[:4],
    ]
    place, tokens, port = create_docket(folder / "docket.sqlite", trials, [picture]), tokens_for(folder), free_port()
    url = f"http://127.0.0.1:{port}"

    def reviewing(docket):
        return Reviewing(docket.review_queue(rules_of(Settings())))

    with running_console(place, folder, reviewing=reviewing, origin=url + PATH) as console:
        address = f"http://{urlsplit(console.url).netloc}{'/' if request.param == 'taken off' else ''}"
        with nginx(folder / "nginx", {"http://10.0.0.1:8080": address}, port):
            yield SimpleNamespace(url=url, tokens=tokens)


@pytest.fixture
def visitor(site):
    """A client that is signed in as a reviewer."""
    with httpx2.Client(base_url=site.url, follow_redirects=True, timeout=120, headers={"origin": site.url}) as client:
        page = client.get(f"{PATH}/trials/one")
        assert page.url.path == f"{PATH}/sign-in"
        onward = page.url.params["next"]
        form = {"proof": form_proof_in(page.text), "token": site.tokens["ruth"], "next": onward}
        answer = client.post(f"{PATH}/sign-in", data=form)
        assert answer.url.path == onward == f"{PATH}/trials/one" and answer.status_code == 200
        yield client


def test_all_addresses_of_the_console_lie_under_its_path(visitor):
    ahead, seen = [f"{PATH}/", f"{PATH}/desk"], {}
    while ahead:
        address = ahead.pop()
        if address in seen:
            continue
        assert urlsplit(address).path.startswith(f"{PATH}/"), f"{address} on {seen}"
        answer = visitor.get(address)
        assert answer.status_code in (200, 204), (address, answer.text)
        seen[address] = answer
        if answer.headers.get("content-type", "").startswith("text/html") and "attachment" not in str(answer.headers):
            for named in addresses_on(answer.text):
                whole = urljoin(str(answer.url), named)
                assert urlsplit(whole).path.startswith(f"{PATH}/"), (address, named)
            whole = [urljoin(str(answer.url), each).partition("#")[0] for each in addresses_on(answer.text, FOLLOWED)]
            # Filters add up without end: one at a time, and apart from an order.
            whole = [each for each in whole if each.count("%3A") + each.count("sort=") < 2]
            ahead += [each.removeprefix(str(visitor.base_url).rstrip("/")) for each in whole]
    pages = {urlsplit(address).path.removeprefix(PATH) for address in seen}
    expected = {"/", "/desk", "/trials", "/trials/one", "/desk/cases/a%20b", "/static/console.css", "/export/csv"}
    assert not expected - pages, sorted(pages)


def test_forms_lead_to_pages_under_the_path(visitor):
    proof = form_proof_in(visitor.get(f"{PATH}/desk").text)

    def location(path, **fields):
        answer = visitor.post(PATH + path, data={"proof": proof, **fields}, follow_redirects=False)
        assert answer.status_code == 303, answer.text
        return answer.headers["location"]

    case = location("/desk/next")
    assert case.startswith(f"{PATH}/desk/cases/") and visitor.get(case).status_code == 200
    shown = location("/trials/one/show", of="meme")
    assert shown.startswith(f"{PATH}/trials/one?shown=")
    (sharp,) = [each for each in addresses_on(visitor.get(shown).text, FOLLOWED) if "/sharp/" in each]
    assert visitor.get(sharp).headers["content-type"].startswith("image/")
    assert location("/desk/cases/one/release").startswith(f"{PATH}/desk")
    assert location("/sign-out") == f"{PATH}/sign-in"
    assert visitor.get(f"{PATH}/desk", follow_redirects=False).headers["location"].startswith(f"{PATH}/sign-in?next=")


def test_the_cookie_goes_to_the_path_alone(site, visitor):
    (cookie,) = visitor.cookies.jar
    assert cookie.path == PATH
    page = visitor.get(f"{PATH}/sign-in?next=/elsewhere", follow_redirects=False)
    assert page.headers["location"] == f"{PATH}/overview", "nobody is sent to another application of the site"
    for outside in ("/courtyard", f"{PATH}/../elsewhere", f"{PATH}/%2e%2E/elsewhere", f"//evil.example{PATH}/"):
        page = visitor.get(f"{PATH}/sign-in", params={"next": outside}, follow_redirects=False)
        assert page.headers["location"] == f"{PATH}/overview"
    other = visitor.post(f"{PATH}/desk/next", headers={"origin": "http://evil.example"}, follow_redirects=False)
    assert other.status_code == 403


@pytest.mark.parametrize("taken_off", [False, True])
async def test_http_under_a_path_names_its_addresses_with_it(tmp_path, taken_off):
    (tmp_path / "court").mkdir()
    port = free_port()
    origin = f"http://127.0.0.1:{port}{PATH}"
    async with real_court(tmp_path / "court", http="127.0.0.1:0", http_origin=origin) as court:
        upstream = court.http.removeprefix("http://")
        changes = {f"10.0.0.{number}:8081": upstream for number in (1, 2)}
        if taken_off:
            where = "location /court/v1/ {\n        proxy_pass http://memecourt_http"
            changes[where] = f"{where}/v1/"
        with nginx(tmp_path / "nginx", changes, port):
            async with httpx2.AsyncClient(base_url=origin, timeout=120) as client:
                court.reader.wait = asyncio.Event()
                headers = {"content-type": "image/png", "prefer": "respond-async"}
                answer = await client.post("/v1/judge?request_id=a/b", content=IMAGE, headers=headers)
                assert answer.status_code == 202 and answer.headers["location"] == f"{PATH}/v1/requests/a%2Fb"
                court.reader.wait.set()
                found = await client.get(urljoin(origin, answer.headers["location"]))
                while "verdict" not in found.json():
                    found = await client.get(urljoin(origin, answer.headers["location"]))
                events = await client.get(f"/v1/trials/{found.json()['trial_id']}/events")
                assert events.headers["content-type"].startswith("text/event-stream") and "data:" in events.text
                description = (await client.get("/v1/openapi.json")).json()
                assert description["servers"] == [{"url": origin}]
                assert f"{PATH}/v1/openapi.json" in (await client.get("/v1/no-such-address")).text


def test_no_template_or_script_names_an_address_without_the_path():
    folder = Path(serving.console.__file__).parent
    files = [*folder.glob("templates/**/*.html"), *folder.glob("static/*.js")]
    found = [
        (file.name, line.strip())
        for file in files
        if file.name != "htmx.min.js"
        for line in file.read_text().replace('data-key="/"', "").splitlines()
        if HARD.search(line)
    ]
    assert len(files) > 30 and found == []
    for hard in (
        '<a href="/desk">',
        '<a href="/">',
        'row("/trials/" ~ id)',
        "assign('/desk')",
        "get(`/trials`)",
        "0; url=/a",
    ):
        assert HARD.search(hard), hard
