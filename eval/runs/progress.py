"""Progress of a run: a bar in a terminal, a line now and then in a log."""

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
    """Tally of a run so far.

    Attributes:
        protocol: Under which verdicts are counted as right; memes that it drops are passed over. None where another
            question is asked.
        total: Memes to be judged.
        before: Number of ``done`` that were there when this process began.
        done: Memes that have a prediction.
        labelled: Number of those that the protocol keeps.
        decided: Number of those with a class.
        right: Number of those with the right class.
        failed: Predictions that there is none of.
        calls: Number of model calls, stored ones included.
        stored: Number of those that were served from the store.
        tokens: In and out.
        began: Start of this process, by :func:`time.monotonic`, in seconds.
        task: Task whose labels are counted as right, where one is asked about; empty in a run of trials.
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
        """Counts one more."""
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
        # Memes that were judged before this process began say nothing of its speed.
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
    """Is told how far a run is, and says nothing of it. Others say it."""

    def tell(self, sentence: str) -> None:
        """Reports a long step, or something to know, in a sentence."""

    def step(self, name: str, done: int, total: int) -> None:
        """Reports the progress of a step of the preparation."""

    def begin(self, score: RunningScore) -> None:
        """Memes are judged from here on."""

    def judged(self, score: RunningScore) -> None:
        """One more has a prediction."""

    def tick(self, score: RunningScore) -> None:
        """A second has gone by."""

    def end(self, score: RunningScore) -> None:
        """No more are judged: all are, or the run was broken off."""


class ProgressLines(Progress):
    """A line every half a minute: for logs, and wherever nobody watches."""

    def __init__(
        self, say: Callable[[str], None], *, every_s: float = _EVERY_S, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Says nothing yet.

        Args:
            say: Function that prints a line.
            every_s: Seconds between two.
            now: The time, in seconds.
        """
        self._print = say
        self._every_s = every_s
        self._now = now
        self._last = now()

    def tell(self, sentence: str) -> None:
        """At once."""
        self._print(sentence)

    def step(self, name: str, done: int, total: int) -> None:
        """Now and then."""
        if self._due():
            self._print(f"{name}: {done:,} of {total:,}")

    def begin(self, score: RunningScore) -> None:
        """At once."""
        self._last = self._now()
        self._print(f"{score.total:,} memes, {score.done:,} of them judged before.")

    def judged(self, score: RunningScore) -> None:
        """Now and then."""
        self.tick(score)

    def tick(self, score: RunningScore) -> None:
        """Now and then."""
        if self._due():
            self._print(self._line(score))

    def end(self, score: RunningScore) -> None:
        """At once."""
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
    """A bar, for a terminal."""

    def __init__(self, console: Console) -> None:
        """Shows nothing yet: nothing may stand in the way of a question that comes before the first step."""
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
        """Gives the bar, to be shown from its first step on."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leaves what it shows where it is."""
        self._bars.stop()

    def tell(self, sentence: str) -> None:
        """Above the bar."""
        # Sentences name files and rows of strangers: brackets in them are no markup.
        self._bars.console.print(sentence, markup=False, highlight=False)

    def step(self, name: str, done: int, total: int) -> None:
        """Shows the step as a bar of its own."""
        self._bars.start()
        if name not in self._preparing:
            self._preparing[name] = self._bars.add_task(name, total=total, words="")
        self._bars.update(self._preparing[name], completed=done, total=total)  # type: ignore[arg-type]

    def begin(self, score: RunningScore) -> None:
        """Starts the bar."""
        self._bars.start()
        self._judging = self._bars.add_task("judged", total=score.total, completed=score.done, words="")

    def judged(self, score: RunningScore) -> None:
        """One further."""
        self.tick(score)

    def tick(self, score: RunningScore) -> None:
        """Rate and time left change."""
        if self._judging is not None:
            words = score.words(time.monotonic())
            self._bars.update(self._judging, completed=score.done, words=words)  # type: ignore[arg-type]

    def end(self, score: RunningScore) -> None:
        """The last figures; what is judged next begins a bar of its own."""
        self.tick(score)
        self._judging = None


@contextmanager
def watching(say: Callable[[str], None], *, stderr: bool = True) -> Iterator[Progress]:
    """A bar where somebody watches, lines where nobody does.

    Args:
        say: Function that prints a line.
        stderr: True if the bar stands on standard error, so that figures on standard output can be piped.
    """
    console = Console(stderr=stderr)
    if not console.is_terminal:
        yield ProgressLines(say)
        return
    with ProgressBar(console) as bar:
        yield bar


def _rounded(number: float) -> str:
    """Three digits, and all of those before the point."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _span(seconds: float) -> str:
    """A time in words: ``40 s``, ``12 min``, ``3 h 05 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"
