"""A reviewer's first session, by one page alone: three cases, a decision by its keys, the record, and the proof."""

import re
import subprocess

import pytest

from memecourt.verify import verify_bundle
from tests.support.doc_blocks import ROOT, Shell, commands

PAGE = (ROOT / "docs" / "reviewer.md").read_text("utf-8")
STEPS = [one.line for one in commands(ROOT / "docs" / "reviewer.md") if not one.line.startswith("pip install")]
CONSOLE = "memecourt console"
REASON = "It insults people for where they come from."


@pytest.fixture(scope="module")
def reviewer(tmp_path_factory):
    """A shell in an empty folder; its docket is the default one, as the page names none."""
    folder = tmp_path_factory.mktemp("reviewer")
    return Shell(folder, folder / "home")


def run_until(reviewer, last):
    """Runs the commands of the page up to the given one, and returns the output of each by its line."""
    done = {}
    for line in STEPS[: STEPS.index(last)]:
        done[line] = reviewer.run(line)
    return done


def decide(chromium, url, keys):
    """Opens the console and decides the next case by the keys of the page; returns what the next case says first."""
    page = chromium.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.goto(url)
    for name in re.findall(r"\*([A-Z][^*]+)\*", PAGE.partition("Press `c`")[0]):
        page.get_by_role("button", name=name).or_(page.get_by_role("link", name=name)).first.click()
        page.wait_for_load_state()
    for key in keys:
        page.keyboard.press("Control+Enter" if key == "Ctrl Enter" else key)
        if key == "c":
            page.get_by_role("heading", name="Your case").wait_for()
        if key == "b":
            page.locator("img.sharp").wait_for()
        if key == "w":
            page.keyboard.type(REASON)
    page.get_by_text("Stored: you found it").wait_for()
    return page.locator("main").inner_text()


def test_session_ends_in_a_decision_that_is_proved(reviewer, chromium):
    steps = run_until(reviewer, CONSOLE)
    assert steps["memecourt demo"].count("a person should look") >= 3
    keys = re.findall(r"`(\w|Ctrl Enter)`", PAGE.partition("Press ")[2].partition("The next case")[0])
    assert keys == ["c", "b", "h", "n", "w", "Ctrl Enter"]
    # One of the two findings, and a digit for the clause, as the page says.
    keys[keys.index("n")] = "1"

    command = ["bash", "-c", f"exec {CONSOLE} --address 127.0.0.1:0"]
    console = subprocess.Popen(
        command, cwd=reviewer.folder, env=reviewer.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        url = console.stdout.readline().decode().removeprefix("console on ").strip()
        found = decide(chromium, url, keys)
    finally:
        console.terminate()
        console.wait(120)
        console.stdout.close()
    assert re.search(r"you found it harmful, the court", found)

    listed = reviewer.run("memecourt records list")
    (trial,) = [line.split()[0] for line in listed.splitlines() if "person: harmful" in line]
    for line in STEPS[STEPS.index(CONSOLE) + 1 :]:
        output = reviewer.run(re.sub(r"\bID\b", trial, line))
        if " records show " in line:
            assert REASON in output and "local" in output
        if " docket verify " in line:
            assert output.rstrip().endswith("clean")
    assert output.rstrip().endswith("right")
    assert REASON in (reviewer.folder / f"{trial}.html").read_text("utf-8")
    bundle, key = ((reviewer.folder / name).read_text("utf-8") for name in ("trial.json", "docket.vkey"))
    review = verify_bundle(bundle, [key]).last("VerdictReviewed")
    assert (review["outcome"], review["label"], review["reason"]) == ("OVERRULED", "HARMFUL", REASON)
