"""Takes the pictures of the console in docs/: a real browser before a real console, on drawn and tame memes.

    python scripts/console_screenshots.py [--to docs]

Needs Chromium (Debian: chromium) and the development dependencies.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from court.events import NearDuplicate
from court.verdict import Label
from serving.console.review.parts import DESK
from serving.docket.open import Docket
from tests.browser.conftest import NAMES
from tests.support.consoles import fill, listening
from tests.support.shown_trials import drawn, full_trial

TRIAL, OTHER = "0f6c3f0e-2a51-4c0a-9d7e-5b8a3d1f7c20", "7be1a9c4-55d2-4f4e-8a30-6c1f0d9e2b47"


@dataclass(frozen=True, slots=True)
class Shot:
    """A picture to take.

    Attributes:
        name: Name of its file.
        path: Path of the page.
        scheme: Light or dark.
        size: Size of the window, in pixels.
        at: Element to scroll to; empty for the beginning of the page.
        shown: True to uncover the picture of the meme first.
        press: A button that is pressed before.
    """

    name: str
    path: str
    scheme: str = "light"
    size: tuple[int, int] = (1280, 980)
    at: str = ""
    shown: bool = False
    press: str = ""


SHOTS = (
    Shot("console-trial.png", f"/trials/{TRIAL}", shown=True),
    Shot("console-judge.png", f"/trials/{TRIAL}", scheme="dark", at="#precedents"),
)

DESK_SHOTS = (Shot("console-case.png", f"/desk/cases/{TRIAL}", press="Take this case", shown=True),)


def main() -> None:
    """Takes all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=Path, default=Path(__file__).resolve().parents[1] / "docs")
    folder = parser.parse_args().to
    with tempfile.TemporaryDirectory() as made:
        picture = drawn()
        near = NearDuplicate(trial_id=OTHER, label=Label.HARMFUL, distance=4, same_text=True, same_picture=False)
        trials = [full_trial(OTHER, picture=picture, label=Label.HARMFUL), full_trial(TRIAL, duplicates=(near,))]
        place = fill(Path(made) / "docket.sqlite", trials, [picture])
        with listening(place) as console, sync_playwright() as driver:
            found = next(filter(None, map(shutil.which, NAMES)))
            browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
            for shot in SHOTS:
                take(browser, console.url, shot, folder / shot.name)
            docket = Docket.open(place)
            with listening(place, parts={DESK: docket.review_queue()}) as desk:
                for shot in DESK_SHOTS:
                    take(browser, desk.url, shot, folder / shot.name)
            browser.close()


def take(browser: Browser, url: str, shot: Shot, to: Path) -> None:
    """One picture."""
    width, height = shot.size
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=shot.scheme)  # type: ignore[arg-type]
    page.goto(f"{url}/sign-in?next={shot.path}")
    page.get_by_role("button", name="Go on").click()
    page.wait_for_load_state("networkidle")
    if shot.press:
        page.get_by_role("button", name=shot.press).click()
        page.wait_for_load_state("networkidle")
    if shot.shown:
        page.get_by_role("button", name="Show the picture", exact=True).click()
        page.locator("#meme-picture img.sharp").wait_for()
    if shot.at:
        page.locator(shot.at).evaluate("one => window.scrollTo(0, one.getBoundingClientRect().top - 62)")
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(300)
    page.screenshot(path=to)
    # A page has few colours: a palette makes the file a third as large.
    Image.open(to).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(to, optimize=True)
    page.close()
    print(to.name)


if __name__ == "__main__":
    main()
