"""Takes pictures of the console: a real browser before a real console, on drawn and tame memes.

    python scripts/console_screenshots.py               # those that docs/ shows
    python scripts/console_screenshots.py --to FOLDER   # each page, wide and on a phone, light and dark

Needs Chromium (Debian: chromium) and the development dependencies.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from serving.console.registry import Reviewing
from tests.browser.conftest import NAMES
from tests.support.console_scenes import DOCUMENTED_CASE, fill_queue
from tests.support.consoles import running_console, tokens_for
from tests.support.desks import NO_SAMPLING

DOCS = Path(__file__).resolve().parents[1] / "docs"
WIDE, PHONE = (1440, 900), (390, 844)
CASE, TRIAL = f"/desk/cases/{DOCUMENTED_CASE}", f"/trials/{DOCUMENTED_CASE}"


@dataclass(frozen=True, slots=True)
class Shot:
    """A page to take pictures of: wide and on a phone, light and dark.

    Attributes:
        name: Name of its files, to which ``-phone`` and ``-dark`` are added.
        path: Path of the page.
        who: Visitor: ruth reviews, vera reads.
        keys: Keys that are pressed before, each with what it brings about.
        at: Element to scroll to; empty for the beginning of the page.
    """

    name: str
    path: str
    who: str = "ruth"
    keys: tuple[tuple[str, str], ...] = ()
    at: str = ""


TAKEN, SHOWN = ("t", "#decide"), ("b", "#meme-picture img.sharp")

SHOTS = (
    Shot("console-overview", "/overview"),
    Shot("console-queue", "/desk"),
    Shot("console-case", CASE, keys=(TAKEN, SHOWN, ("n", "#reason"))),
    Shot("console-trials", "/trials", who="vera", keys=(("i", ":root[data-texts=shown]"),)),
    Shot("console-trial", TRIAL, who="vera"),
    Shot("console-exhibits", TRIAL, who="vera", keys=(SHOWN,), at="#exhibits"),
    Shot("console-try", "/try", who="vera"),
)


def main() -> None:
    """Takes all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=Path, help="Folder for all pictures. [default: docs, for those that it shows]")
    folder = parser.parse_args().to
    shown = "".join(page.read_text() for page in DOCS.glob("*.md"))
    with tempfile.TemporaryDirectory() as made:
        place, tokens = fill_queue(Path(made)), tokens_for(Path(made))
        reviewing = lambda docket: Reviewing(docket.review_queue(NO_SAMPLING))  # noqa: E731
        with running_console(place, Path(made), reviewing=reviewing) as console, sync_playwright() as driver:
            found = next(filter(None, map(shutil.which, NAMES)))
            browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
            for shot, size, scheme in itertools.product(SHOTS, (WIDE, PHONE), ("light", "dark")):
                name = f"{shot.name}{'-phone' * (size == PHONE)}{'-dark' * (scheme == 'dark')}.png"
                if folder or f"({name})" in shown:
                    take(browser, console.url, shot, (*size, scheme), tokens[shot.who], (folder or DOCS) / name)
            browser.close()


def take(browser: Browser, url: str, shot: Shot, look: tuple[int, int, str], token: str, to: Path) -> None:
    """One picture."""
    width, height, scheme = look
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(f"{url}/sign-in?next={shot.path}")
    page.get_by_label("Token").fill(token)
    page.get_by_label("Token").press("Enter")
    page.wait_for_url(f"**{shot.path}")
    for key, brings in shot.keys:
        page.wait_for_load_state("networkidle")  # with its scripts
        page.keyboard.press(key)
        page.locator(brings).wait_for()
    if shot.at:
        page.locator(shot.at).evaluate("one => window.scrollTo(0, one.getBoundingClientRect().top - 62)")
    page.wait_for_load_state("networkidle")
    page.screenshot(path=to)
    if page.locator("[data-key=x]").count():
        page.locator("[data-key=x]").click()  # for whoever takes the case next
        page.wait_for_url("**/desk**")
    _shrink(to)
    page.context.close()
    print(f"{to.name}: {to.stat().st_size / 1000:.0f} kB")


def _shrink(file: Path) -> None:
    """Gives a picture a palette, which makes its file a third as large: a page has few colours."""
    Image.open(file).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(file, optimize=True)


if __name__ == "__main__":
    main()
