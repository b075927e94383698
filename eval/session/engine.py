"""The loop of every session: items are worked on concurrently, and each result is stored before the next is begun.

A step may fail for a reason that passes, such as a busy server. Within its patience the engine tries the item again;
then it leaves the item for the next start of the session. If such failures follow each other, something that all items
need is gone, and the session stops.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar

from pydantic import BaseModel
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from court.deadline import gather_or_cancel
from court.errors import Unavailable
from eval.session.directory import SessionFolder

SERVER_GONE = "RUN_SERVER_GONE"
"""Reason of an error: so many consecutive items failed for lack of a server that continuing is pointless."""
UNFINISHED = "RUN_UNFINISHED"
"""Reason of an error: all items were tried, and some failed for reasons that may be temporary."""
LATE = frozenset({"MODEL_TOO_SLOW", "TEXT_TOO_SLOW", "SEARCH_TOO_SLOW", "OVERRUN"})
"""Reasons of failures by timeout. The cause may be temporary or the item itself, so each is retried once before it
counts as a failure."""
IN_A_ROW = 3
"""Consecutive failures, by item in progress at once, after which the server counts as gone."""
_LONGEST_PAUSE_S = 30.0
_EVERY_S = 30.0
_FIRST_S = 3.0
"""Seconds after which the first line says how long the items take."""

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")
S = TypeVar("S")
K = TypeVar("K", bound=Hashable)
B = TypeVar("B", bound=BaseModel)


class Later(Exception):
    """Raised by a step that has no final answer for its item, for a reason that may pass.

    Attributes:
        waited: True if the item used up its patience, during which no other was answered.
    """

    def __init__(self, reason: str, cause: str = "", *, waited: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.cause = cause
        self.waited = waited


@dataclass(frozen=True, slots=True)
class Tried(Generic[R, S]):
    """One attempt at an item."""

    result: R
    passing: bool = False
    """True if the failure may be temporary."""
    reason: str = ""
    state: S | None = None
    """State from which the next attempt continues."""
    retry_after: float = 0.0
    """Pause that a server asked for, in seconds."""


@dataclass(slots=True)
class Patience:
    """Retry budget for busy or unreachable servers, shared by all items of a session."""

    seconds: float
    """Longest wait for an item, counted from its first failure or from the last answer to any item."""
    _answered: float = -math.inf

    def answered(self) -> None:
        """Notes that an item was answered, so the servers that items need are up."""
        self._answered = _now()

    def left(self, since: float) -> float:
        """Seconds left for an item that first failed at a time of the event loop's clock."""
        # An answer to any item shows that the server is up but busy, so waiting is worthwhile.
        return self.seconds - (_now() - max(since, self._answered))


def _now() -> float:
    return asyncio.get_running_loop().time()


async def patiently(attempt: Callable[[S | None], Awaitable[Tried[R, S]]], patience: Patience | None) -> R:
    """Attempts an item until it has a final result, or patience runs out.

    Raises Later: The last failure may be temporary.
    """
    first, pause, late = _now(), 1.0, 0
    state: S | None = None
    while True:
        tried = await attempt(state)
        late += tried.reason in LATE
        # Timing out twice is an outcome: the item itself may take that long.
        if not tried.passing or late > 1:
            if patience is not None and not tried.passing:
                patience.answered()
            return tried.result
        # A server's Retry-After is respected.
        wait = max(pause, tried.retry_after)
        if patience is None or patience.left(first) < wait:
            if tried.reason in LATE:
                return tried.result
            raise Later(tried.reason, waited=patience is not None and patience.seconds > 0)
        await asyncio.sleep(wait)
        # The failed attempt is continued from its state: a new one would repeat all its calls.
        state, pause = tried.state or state, min(2 * pause, _LONGEST_PAUSE_S)


@dataclass(slots=True)
class Watch:
    """Watches for the end of a session whose servers are gone, which would fail all remaining items one by one."""

    concurrency: int
    items: str = "items"
    left: Counter[str] = field(default_factory=Counter)
    cause: str = ""
    _failures: int = 0

    def answered(self, reason: str = "") -> None:
        """Notes a final result, and the code of its failure if it is one."""
        # Timeouts count: with a hanging server every item times out.
        if reason in LATE:
            self._failed(reason)
        else:
            self._failures = 0

    def later(self, error: Later) -> None:
        """Notes an item without a final result. Raises Unavailable if it is one too many."""
        self.left[error.reason] += 1
        self.cause = self.cause or error.cause
        # An item that used up its patience, during which no other was answered, is sufficient evidence.
        self._failed(error.reason, waited=error.waited)

    def close(self, total: int) -> None:
        """Raises Unavailable if an item has no final result."""
        if self.left:
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in self.left.most_common())
            raise Unavailable(
                f"{self.left.total():,} of {total:,} {self.items} have no answer yet, for reasons that may pass "
                f"({reasons}).{' ' if self.cause else ''}{self.cause}",
                reason=UNFINISHED,
            )

    def _failed(self, reason: str, *, waited: bool = False) -> None:
        self._failures += 1
        if waited or self._failures >= IN_A_ROW * max(self.concurrency, 3):
            raise Unavailable(
                f"The last {self._failures} {self.items} in a row failed, the last with {reason}: something that they "
                f"need is not there.{' ' if self.cause else ''}{self.cause}",
                reason=SERVER_GONE,
            )


async def run_items(
    items: Sequence[I],
    step: Callable[[I], Awaitable[R]],
    *,
    concurrency: int,
    store: Callable[[I, R], None] = lambda *_: None,
    progress: Callable[[int, int], None] = lambda *_: None,
    before: int = 0,
    watch: Watch | None = None,
    failure: Callable[[R], str] = lambda _: "",
) -> list[R]:
    """Works on items concurrently; the first failure that is not :class:`Later` cancels the others.

    Args:
        store: Stores a result; called at once and without interruption, in the order in which items are finished.
        watch: Takes items without a final result; None if no step raises :class:`Later`.
        failure: Code of the failure that a result stands for; empty if it stands for none.

    Returns:
        The results in the order of the items, without those left for later.

    Raises Unavailable: Some items have no final result (reasons RUN_UNFINISHED, RUN_SERVER_GONE).
    """
    total, done = before + len(items), before
    results: dict[int, R] = {}
    # One shared iterator: each worker takes the next item when it has finished one.
    remaining = iter(enumerate(items))
    progress(done, total)

    async def work() -> None:
        nonlocal done
        for index, item in remaining:
            try:
                result = await step(item)
            except Later as error:
                if watch is None:
                    raise
                watch.later(error)
                continue
            store(item, result)
            results[index] = result
            done += 1
            progress(done, total)
            if watch is not None:
                watch.answered(failure(result))

    if items:
        await gather_or_cancel(*(work() for _ in range(min(concurrency, len(items)))))
    if watch is not None:
        watch.close(total)
    return [results[index] for index in sorted(results)]


class Results(Generic[K, B]):
    """Results of a session in one of its files, by item: a line each, in the order of the items once all are there.

    Attributes:
        done: Results so far; a later line about the same item replaces an earlier one.
    """

    def __init__(self, folder: SessionFolder[Any], name: str, kind: type[B], key: Callable[[B], K]) -> None:
        """Reads the results so far; skips a last line truncated by a crash, whose item is worked on again.

        Raises BadRequest: A line can't be read.
        """
        self._folder = folder
        self._name = name
        self._key = key
        self.done: dict[K, B] = {key(one): one for one in folder.read(name, kind)}

    def resume(self, wanted: Collection[K]) -> None:
        """Rewrites the file with the results about some items alone."""
        self.done = {key: one for key, one in self.done.items() if key in wanted}
        # Rewritten even if nothing is dropped: otherwise the next line would be appended to a truncated one.
        self._folder.write(self._name, self.done.values())

    def add(self, result: B) -> None:
        """Appends a result."""
        # Passed to the OS at once. If it is lost in a crash, it is made again from the docket or the call cache.
        self._folder.append(self._name, [result])
        self.done[self._key(result)] = result

    def put_in_order(self, keys: Iterable[K]) -> None:
        """Replaces the file: two sessions of the same plan give the same file, in whichever order items finished."""
        self._folder.write(self._name, [self.done[key] for key in keys if key in self.done])


class Progress:
    """Receives the progress of a session and ignores it; subclasses display it."""

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

    def step(self, name: str, done: int, total: int, words: str = "") -> None:
        """Reports the progress of a step, perhaps with further figures in words."""


class _Timed(Progress):
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._begun: dict[str, tuple[float, int]] = {}
        self._last: dict[str, int] = {}

    def _words(self, name: str, done: int, total: int, words: str) -> str:
        """Rate and time left of a step, in front of its other figures."""
        # Items done before this process started are excluded from its rate. Fewer than before are of another run.
        if name not in self._begun or done < self._last[name]:
            self._begun[name] = self._now(), done
        self._last[name] = done
        began, before = self._begun[name]
        fresh, seconds = done - before, self._now() - began
        parts = [words] if words else []
        if fresh and seconds > 0:
            a_minute, left = 60 * fresh / seconds, (total - done) * seconds / fresh
            parts = [f"{_span(left)} left", *parts] if left else parts
            # Three significant digits, and all digits before the point.
            parts.insert(0, f"{a_minute:{',.0f' if a_minute >= 100 else '.3g'}} a minute")
        return ", ".join(parts)


class ProgressLines(_Timed):
    """Prints a line every half minute: for logs and other output that is not a terminal."""

    def __init__(self, say: Callable[[str], None], *, now: Callable[[], float] = time.monotonic) -> None:
        """Starts without output."""
        super().__init__(now)
        self._print = say
        self._due: dict[str, float] = {}

    def tell(self, sentence: str) -> None:
        """Prints the sentence at once."""
        self._print(sentence)

    def step(self, name: str, done: int, total: int, words: str = "") -> None:
        """Prints the step if a line is due; the first one early, as whoever watches wants to know whether to wait."""
        now, words = self._now(), self._words(name, done, total, words)
        if now >= self._due.setdefault(name, now + _FIRST_S):
            self._due[name] = now + _EVERY_S
            self._print(f"{name}: {done:,} of {total:,}{', ' if words else ''}{words}")


class ProgressBar(_Timed):
    """Shows a progress bar in a terminal for each step."""

    def __init__(self, console: Console) -> None:
        """Starts hidden, so as not to disturb prompts that appear before the first step."""
        super().__init__(time.monotonic)
        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[words]}", markup=False),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}

    def close(self) -> None:
        """Stops the bars and leaves them on the screen."""
        self._bars.stop()

    def tell(self, sentence: str) -> None:
        """Prints the sentence above the bar."""
        # Sentences may quote untrusted names of files and rows: brackets in them must not act as markup.
        self._bars.console.print(sentence, markup=False, highlight=False)

    def step(self, name: str, done: int, total: int, words: str = "") -> None:
        """Shows the step."""
        self._bars.start()
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=total, words="")
        # A total that changed is of a further run of the same study.
        self._bars.update(self._tasks[name], total=total, completed=done, words=self._words(name, done, total, words))


@contextmanager
def watching(say: Callable[[str], None]) -> Iterator[Progress]:
    """Shows a bar in a terminal, and lines elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield ProgressLines(say)
        return
    with closing(ProgressBar(console)) as bar:
        yield bar


def _span(seconds: float) -> str:
    """A duration in words: ``40 s``, ``12 min``, ``3 h 05 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"
