"""Helpers of tests of report page."""

from __future__ import annotations

import io
import re

from PIL import Image


class Opened:
    """A page in a browser that records fetches, which it blocks, and console messages."""

    def __init__(self, browser, address, **options):
        self.context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        self.page = self.context.new_page()
        self.fetched, self.complaints = [], []
        self.context.route("**/*", self._route)
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.address = address
        self.page.goto(address)

    def _route(self, route):
        if route.request.url == self.address:
            route.continue_()
        else:
            self.fetched.append(route.request.url)
            route.abort()

    def filters(self):
        """Returns the computed CSS filter of every picture."""
        return self.page.eval_on_selector_all("img", "all => all.map(one => getComputedStyle(one).filter)")

    def reach(self):
        """Scrolls to the wrong verdicts; elements far from the window are not laid out and can't be clicked."""
        self.page.eval_on_selector(".entry", "one => one.scrollIntoView()")

    def picture(self, selector):
        """Returns a screenshot of the first element that matches."""
        return Image.open(io.BytesIO(self.page.locator(selector).first.screenshot())).convert("RGB")


def luminance(colour):
    """Returns the relative luminance of `rgb(r, g, b)` (WCAG 2.2)."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]
