"""The page of the HTTP API in a real browser."""

from anyio.from_thread import start_blocking_portal
from playwright.sync_api import expect

from serving.http.listen import Listener, open_listener
from serving.rest.app import create_api
from serving.settings import Settings


def test_api_page_shows_operations_without_requests_to_other_sites(chromium):
    complaints, requests = [], []
    # The page and the description need none of the court's parts.
    app = create_api(None, None, None, names=None, described=True)
    listener = Listener("The API", field="http", example="127.0.0.1:0", at_once=16)
    served = open_listener(listener, app, Settings(), "127.0.0.1:0")
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(served) as url:
        page = chromium.new_context().new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        answer = page.goto(f"{url}/v1/docs")
        assert "unsafe" not in answer.headers["content-security-policy"]
        page.get_by_text("Tries a meme.", exact=True).click()
        expect(page.get_by_text("Idempotency-Key").first).to_be_visible()
        page.context.close()
    assert complaints == [] and requests and all(each.startswith(f"{url}/v1/") for each in requests)
