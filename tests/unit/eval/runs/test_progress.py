"""Progress of long commands: a bar in a terminal, and occasional lines elsewhere."""

import io
from contextlib import closing
from functools import partial

from rich.console import Console

from eval.session.engine import ProgressBar, ProgressLines


def lines_of(totals, seconds):
    """Returns the lines that a step prints if it is told of one more total each second."""
    now, lines = [0.0], []
    step = partial(ProgressLines(lines.append, now=lambda: now[0]).step, "memes")
    for second, done in zip(range(seconds), totals, strict=False):
        now[0] = float(second)
        step(done, 100, "2 failed")
    return lines


def test_progress_is_a_line_after_three_seconds_and_every_half_a_minute():
    assert lines_of(range(101), 101) == [
        "memes: 3 of 100, 60 a minute, 2 min left, 2 failed",
        "memes: 33 of 100, 60 a minute, 67 s left, 2 failed",
        "memes: 63 of 100, 60 a minute, 37 s left, 2 failed",
        "memes: 93 of 100, 60 a minute, 7 s left, 2 failed",
    ]


def test_rate_counts_what_this_process_has_done_in_this_run():
    assert lines_of([40, 40, 40, 40], 4) == ["memes: 40 of 100, 2 failed"]
    # A step of the same name that begins anew is another run's, with a rate of its own.
    assert lines_of([50, 90, 0, 1, 2], 5)[-1] == "memes: 1 of 100, 60 a minute, 2 min left, 2 failed"


def test_progress_bar_appears_only_at_the_first_step():
    shown = io.StringIO()
    with closing(ProgressBar(Console(file=shown, force_terminal=True, width=80))) as bar:
        bar.tell("This takes about 10 calls.")
        assert shown.getvalue() == "This takes about 10 calls.\n"
        bar.step("memes", 3, 10)
    assert "memes" in shown.getvalue() and "3/10" in shown.getvalue()
