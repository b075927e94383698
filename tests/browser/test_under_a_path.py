"""The console under a path of a site, behind nginx, in a real browser."""

from playwright.sync_api import expect

from tests.support.consoles import create_docket, running_console, tokens_for
from tests.support.nginx import free_port, nginx
from tests.support.shown_trials import drawn_picture, full_trial


def test_console_works_under_a_path(chromium, tmp_path):
    picture = drawn_picture()
    place = create_docket(tmp_path / "docket.sqlite", [full_trial("one", picture=picture)], [picture])
    tokens, port = tokens_for(tmp_path), free_port()
    url = f"http://127.0.0.1:{port}/court"
    requests, complaints = [], []
    with running_console(place, tmp_path, origin=url) as console:
        address = console.url.removeprefix("http://")
        with nginx(tmp_path / "nginx", {"10.0.0.1:8080": address}, port):
            context = chromium.new_context()
            page = context.new_page()
            page.on("request", lambda request: requests.append(request.url))
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("response", lambda answer: answer.status < 400 or complaints.append(answer.url))
            page.goto(f"{url}/trials/one")
            page.get_by_label("Token").fill(tokens["vera"])
            page.get_by_role("button", name="Sign in").click()
            page.wait_for_url(f"{url}/trials/one")
            page.keyboard.press("b")  # shows the picture, by htmx
            expect(page.locator("#meme-picture img.sharp")).to_be_visible()
            page.keyboard.press("g")
            page.keyboard.press("t")
            page.wait_for_url(f"{url}/trials")
            page.locator('form[action$="/sign-out"]').evaluate("form => form.requestSubmit()")
            page.wait_for_url(f"{url}/sign-in")
            context.close()
    assert complaints == [] and [each for each in requests if not each.startswith(f"{url}/")] == []
