"""Progress of long commands: a bar in a terminal, and occasional lines elsewhere."""

import io
from functools import partial

from rich.console import Console

from eval.session.engine import ProgressBar, ProgressLines, RunningTotals


def test_progress_is_one_line_every_half_a_minute_for_any_number_of_steps():
    now, lines = [0.0], []
    step = partial(ProgressLines(lines.append, now=lambda: now[0]).step, "memes")
    for done in range(1, 101):
        now[0] += 1.0
        step(done, 100)
    assert lines == ["memes: 30 of 100", "memes: 60 of 100", "memes: 90 of 100"]


def test_first_line_with_the_time_left_comes_after_three_seconds():
    now, lines = [0.0], []
    progress, totals = ProgressLines(lines.append, now=lambda: now[0]), RunningTotals(20, began=0.0)
    progress.begin(totals)
    for done in range(1, 21):
        now[0], totals.done = float(done), done
        progress.tick(totals)
    assert lines == ["20 memes, 0 of them judged before.", "3 of 20 judged: 60 a minute, 17 s left"]


def test_time_left_of_slow_memes_is_shown_with_the_first():
    now, lines = [0.0], []
    progress, totals = ProgressLines(lines.append, now=lambda: now[0]), RunningTotals(20, began=0.0)
    progress.begin(totals)
    for second in range(1, 12):
        now[0], totals.done = float(second), second // 10
        progress.tick(totals)
    assert lines[1:] == ["1 of 20 judged: 6 a minute, 3 min left"]


def test_progress_bar_appears_only_at_the_first_step():
    shown = io.StringIO()
    with ProgressBar(Console(file=shown, force_terminal=True, width=80)) as bar:
        bar.tell("This takes about 10 calls.")
        assert shown.getvalue() == "This takes about 10 calls.\n"
        bar.step("memes", 3, 10)
    assert "memes" in shown.getvalue() and "3/10" in shown.getvalue()
