"""The page of the HTTP API in a real browser."""

import asyncio
import threading

from playwright.sync_api import expect

from serving.http.listen import Listener, open_listener
from serving.rest.app import create_api
from serving.settings import Settings


def test_api_page_shows_operations_without_requests_to_other_sites(chromium):
    urls, complaints, requests, done = [], [], [], threading.Event()
    started = threading.Event()
    # The page and the description need none of the court's parts.
    app = create_api(None, None, None, names=None, described=True)

    async def work():
        listener = Listener("The API", field="http", example="127.0.0.1:0", at_once=16)
        async with open_listener(listener, app, Settings(), "127.0.0.1:0") as url:
            urls.append(url)
            started.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(work()), daemon=True)
    thread.start()
    assert started.wait(60)
    try:
        page = chromium.new_context().new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        answer = page.goto(f"{urls[0]}/v1/docs")
        assert "unsafe" not in answer.headers["content-security-policy"]
        page.get_by_text("Tries a meme.", exact=True).click()
        expect(page.get_by_text("Idempotency-Key").first).to_be_visible()
        page.context.close()
    finally:
        done.set()
        thread.join(60)
    assert complaints == [] and requests and all(each.startswith(f"{urls[0]}/v1/") for each in requests)
