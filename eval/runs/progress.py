"""Progress of a run: a bar in a terminal, periodic lines in a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bars

from eval.datasets.items import JudgedMeme
from eval.datasets.protocol import Protocol
from eval.runs.prediction import Outcome, Prediction
from eval.runs.question import gold_of

_EVERY_S = 30.0


@dataclass(slots=True)
class RunningScore:
    """Running totals of a run.

    Attributes:
        protocol: Protocol under which verdicts are scored; memes that it drops are skipped. None if another question is
            asked.
        before: Number of ``done`` that existed when this process started.
        done: Memes that have a prediction.
        labelled: Number of those that the protocol keeps.
        decided: Number of those with a class.
        right: Number of those with the correct class.
        calls: Number of model calls, stored ones included.
        stored: Number of those answered from the call cache.
        tokens: Input plus output tokens.
        began: Start of this process, by :func:`time.monotonic`, in seconds.
        task: Task whose labels are scored, if one is asked about; empty in a run of trials.
    """

    protocol: Protocol | None
    total: int
    before: int = 0
    done: int = 0
    labelled: int = 0
    decided: int = 0
    right: int = 0
    failed: int = 0
    calls: int = 0
    stored: int = 0
    tokens: int = 0
    began: float = field(default_factory=time.monotonic)
    task: str = ""

    def add(self, meme: JudgedMeme, prediction: Prediction) -> None:
        """Counts one more prediction."""
        self.done += 1
        self.failed += prediction.outcome is Outcome.FAILED
        cost = prediction.cost
        self.calls += cost.calls
        self.stored += cost.stored
        self.tokens += cost.tokens_in + cost.tokens_out
        if self.protocol is None:
            answer = prediction.said.get(self.task)
            self._count(gold_of(meme, self.task), None if answer is None else frozenset(answer.labels))
        else:
            self._count(meme.gold(self.protocol), prediction.outcome.harmful)

    def _count(self, gold: object, predicted: object) -> None:
        if gold is not None:
            self.labelled += 1
            self.decided += predicted is not None
            self.right += predicted == gold

    def words(self, now: float) -> str:
        """Rate, time left, tokens, accuracy and coverage.

        Args:
            now: Current time by :func:`time.monotonic`, in seconds.
        """
        # Memes judged before this process started are excluded from its rate.
        fresh, seconds = self.done - self.before, now - self.began
        parts = []
        if fresh and seconds > 0:
            rate = fresh / seconds
            parts.append(f"{_rounded(60 * rate)} a minute")
            if self.done < self.total:
                parts.append(f"{_span((self.total - self.done) / rate)} left")
        if self.calls:
            parts.append(f"{self.calls:,} calls ({self.stored:,} stored)")
            parts.append(f"{self.tokens:,} tokens")
        if self.decided:
            parts.append(f"{self.protocol or self.task}: accuracy {self.right / self.decided:.3f}")
            parts.append(f"coverage {self.decided / self.labelled:.3f}")
        if self.failed:
            parts.append(f"{self.failed:,} failed")
        return ", ".join(parts)


class Progress:
    """Receives the progress of a run and ignores it; subclasses display it."""

    def tell(self, sentence: str) -> None:
        """Reports a long step, or a notice, in a sentence."""

    def step(self, name: str, done: int, total: int) -> None:
        """Reports the progress of a step of the preparation."""

    def begin(self, score: RunningScore) -> None:
        """Reports that judging begins."""

    def judged(self, score: RunningScore) -> None:
        """Reports that one more meme has a prediction."""

    def tick(self, score: RunningScore) -> None:
        """Reports that a second has passed."""

    def end(self, score: RunningScore) -> None:
        """Reports that judging has ended, finished or not."""


class ProgressLines(Progress):
    """Prints a line every half minute: for logs and other output that is not a terminal."""

    def __init__(
        self, say: Callable[[str], None], *, every_s: float = _EVERY_S, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Starts without output.

        Args:
            say: Function that prints a line.
            every_s: Seconds between two lines.
            now: Clock, in seconds.
        """
        self._print = say
        self._every_s = every_s
        self._now = now
        self._last = now()

    def tell(self, sentence: str) -> None:
        """Prints the sentence at once."""
        self._print(sentence)

    def step(self, name: str, done: int, total: int) -> None:
        """Prints the step if a line is due."""
        if self._due():
            self._print(f"{name}: {done:,} of {total:,}")

    def begin(self, score: RunningScore) -> None:
        """Prints a line at once."""
        self._last = self._now()
        self._print(f"{score.total:,} memes, {score.done:,} of them judged before.")

    def judged(self, score: RunningScore) -> None:
        """Prints a line if it is due."""
        self.tick(score)

    def tick(self, score: RunningScore) -> None:
        """Prints a line if it is due."""
        if self._due():
            self._print(self._line(score))

    def end(self, score: RunningScore) -> None:
        """Prints a line at once."""
        self._print(self._line(score))

    def _line(self, score: RunningScore) -> str:
        words = score.words(self._now())
        return f"{score.done:,} of {score.total:,} judged{': ' if words else ''}{words}"

    def _due(self) -> bool:
        now = self._now()
        if now - self._last < self._every_s:
            return False
        self._last = now
        return True


class ProgressBar(Progress):
    """Shows a progress bar in a terminal."""

    def __init__(self, console: Console) -> None:
        """Starts hidden, so as not to disturb prompts that appear before the first step."""
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[words]}", markup=False),
            console=console,
        )
        self._preparing: dict[str, int] = {}
        self._judging: int | None = None

    def __enter__(self) -> Self:
        """Returns the bar, which appears with its first step."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stops the bar and leaves it on the screen."""
        self._bars.stop()

    def tell(self, sentence: str) -> None:
        """Prints the sentence above the bar."""
        # Sentences may quote untrusted names of files and rows: brackets in them must not act as markup.
        self._bars.console.print(sentence, markup=False, highlight=False)

    def step(self, name: str, done: int, total: int) -> None:
        """Shows the step as a separate bar."""
        self._bars.start()
        if name not in self._preparing:
            self._preparing[name] = self._bars.add_task(name, total=total, words="")
        self._bars.update(self._preparing[name], completed=done, total=total)  # type: ignore[arg-type]

    def begin(self, score: RunningScore) -> None:
        """Starts the bar."""
        self._bars.start()
        self._judging = self._bars.add_task("judged", total=score.total, completed=score.done, words="")

    def judged(self, score: RunningScore) -> None:
        """Advances the bar."""
        self.tick(score)

    def tick(self, score: RunningScore) -> None:
        """Updates rate and time left."""
        if self._judging is not None:
            words = score.words(time.monotonic())
            self._bars.update(self._judging, completed=score.done, words=words)  # type: ignore[arg-type]

    def end(self, score: RunningScore) -> None:
        """Shows the final figures; further judging starts a new bar."""
        self.tick(score)
        self._judging = None


@contextmanager
def watching(say: Callable[[str], None], *, stderr: bool = True) -> Iterator[Progress]:
    """Shows a bar in a terminal, and lines elsewhere.

    Args:
        say: Function that prints a line.
        stderr: True to write the bar to standard error, so that standard output can be piped.
    """
    console = Console(stderr=stderr)
    if not console.is_terminal:
        yield ProgressLines(say)
        return
    with ProgressBar(console) as bar:
        yield bar


def _rounded(number: float) -> str:
    """The number with three significant digits, and all digits before the point."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _span(seconds: float) -> str:
    """A duration in words: ``40 s``, ``12 min``, ``3 h 05 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"
