"""Progress of a session: a bar in a terminal, periodic lines in a log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bars

_EVERY_S = 30.0
_FIRST_S = 3.0
"""Seconds after which the first line says how long the items take."""


@dataclass(slots=True)
class RunningTotals:
    """Running totals of the items of a session; a kind of session may add figures to its words."""

    total: int
    before: int = 0
    """Number of ``done`` that existed when this process started."""
    done: int = 0
    began: float = field(default_factory=time.monotonic)

    def words(self, now: float) -> str:
        """Rate and time left."""
        # Items done before this process started are excluded from its rate.
        fresh, seconds = self.done - self.before, now - self.began
        parts = []
        if fresh and seconds > 0:
            rate = fresh / seconds
            # Three significant digits, and all digits before the point.
            parts.append(f"{60 * rate:{',.0f' if 60 * rate >= 100 else '.3g'}} a minute")
            if self.done < self.total:
                parts.append(f"{_span((self.total - self.done) / rate)} left")
        return ", ".join([*parts, *self.figures()])

    def figures(self) -> list[str]:
        """Lists further figures, in words."""
        return []


class Progress:
    """Receives the progress of a run and ignores it; subclasses display it."""

    def tell(self, sentence: str) -> None:
        """Reports a long step, or a notice, in a sentence."""

    def tell_once(self, sentences: Iterable[str]) -> None:
        """Reports the sentences that it has not reported before, as by another run of the same study."""
        for sentence in sentences:
            if sentence not in self._once:
                self._once.add(sentence)
                self.tell(sentence)

    @cached_property
    def _once(self) -> set[str]:
        return set()

    def step(self, name: str, done: int, total: int) -> None:
        """Reports the progress of a step of the preparation."""

    def begin(self, score: RunningTotals) -> None:
        """Reports that judging begins."""

    def judged(self, score: RunningTotals) -> None:
        """Reports that one more meme has a prediction."""

    def tick(self, score: RunningTotals) -> None:
        """Reports that a second has passed."""

    def end(self, score: RunningTotals) -> None:
        """Reports that judging has ended, finished or not."""

    @asynccontextmanager
    async def shown(self, score: RunningTotals) -> AsyncIterator[None]:
        """Shows totals from begin to end, and each second in between."""

        async def tick() -> None:
            while True:
                await asyncio.sleep(1)
                self.tick(score)

        self.begin(score)
        ticking = asyncio.create_task(tick())
        try:
            yield
        finally:
            ticking.cancel()
            # Cancelling it is no error of the session.
            await asyncio.gather(ticking, return_exceptions=True)
            self.end(score)


class ProgressLines(Progress):
    """Prints a line every half minute: for logs and other output that is not a terminal."""

    def __init__(
        self, say: Callable[[str], None], *, every_s: float = _EVERY_S, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Starts without output."""
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

    def begin(self, score: RunningTotals) -> None:
        """Prints a line at once, and the next one early: whoever watches wants to know whether to wait."""
        self._last = self._now() - max(0.0, self._every_s - _FIRST_S)
        self._print(f"{score.total:,} memes, {score.done:,} of them judged before.")

    def judged(self, score: RunningTotals) -> None:
        """Prints a line if it is due."""
        self.tick(score)

    def tick(self, score: RunningTotals) -> None:
        """Prints a line if it is due."""
        # Before the first is done, nobody knows how long the others take.
        early = score.done == score.before and self._now() - score.began < self._every_s
        if not early and self._due():
            self._print(self._line(score))

    def end(self, score: RunningTotals) -> None:
        """Prints a line at once."""
        self._print(self._line(score))

    def _line(self, score: RunningTotals) -> str:
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

    def begin(self, score: RunningTotals) -> None:
        """Starts the bar."""
        self._bars.start()
        self._judging = self._bars.add_task("judged", total=score.total, completed=score.done, words="")

    def judged(self, score: RunningTotals) -> None:
        """Advances the bar."""
        self.tick(score)

    def tick(self, score: RunningTotals) -> None:
        """Updates rate and time left."""
        if self._judging is not None:
            words = score.words(time.monotonic())
            self._bars.update(self._judging, completed=score.done, words=words)  # type: ignore[arg-type]

    def end(self, score: RunningTotals) -> None:
        """Shows the final figures; further judging starts a new bar."""
        self.tick(score)
        self._judging = None


@contextmanager
def watching(say: Callable[[str], None], *, stderr: bool = True) -> Iterator[Progress]:
    """Shows a bar in a terminal, and lines elsewhere."""
    console = Console(stderr=stderr)
    if not console.is_terminal:
        yield ProgressLines(say)
        return
    with ProgressBar(console) as bar:
        yield bar


def _span(seconds: float) -> str:
    """A duration in words: ``40 s``, ``12 min``, ``3 h 05 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"
