"""Benchmarks: the list of them, how one is run, and the bounds that its figures must meet.

Each benchmark is a comparison: our code with the baseline that works without it, or with our own undisturbed run, in
alternating turns so that a slowdown affects both. A goal is a bound on such a ratio, on a count or on a size, never on
seconds or on a rate per second, because those depend as much on what else the machine is doing.
"""

import operator
import os
import statistics
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.resources import files
from typing import Any, Self, TypeVar

T = TypeVar("T")
R = TypeVar("R")

BENCHMARKS: Mapping[str, tuple[str, str]] = {
    name: (one["module"], one["measures"])
    for name, one in tomllib.loads((files("eval.perf") / "benchmarks.toml").read_text("utf-8")).items()
}
"""Name of each benchmark, its module, and what it measures.

It is the function of that name, ``-`` written ``_``: its keyword arguments are its scale, their defaults the usual one,
and it returns a :class:`Result`.
"""

_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {"<=": operator.le, ">=": operator.ge, "==": operator.eq}


@dataclass(frozen=True, slots=True)
class Result:
    """Figures of a benchmark."""

    figures: Mapping[str, float]
    goals: Mapping[str, str]
    """A bound per figure, such as ``<= 1.05``; figures without one are for information."""

    def within_bound(self, figure: str) -> bool:
        """True if a figure is within its bound. Raises KeyError if it has none or was not measured."""
        # Compares the value as measured: 1.05004 is shown as 1.05 but misses a bound of 1.05.
        comparison, bound = self.goals[figure].split()
        return _COMPARISONS[comparison](self.figures[figure], float(bound))

    def __or__(self, other: Self) -> Self:
        return type(self)({**self.figures, **other.figures}, {**self.goals, **other.goals})

    @property
    def holds(self) -> bool:
        """True if all bounds hold."""
        return all(self.within_bound(figure) for figure in self.goals)

    @property
    def rounded(self) -> dict[str, float]:
        """The figures to four digits, as they are shown; counts in full."""
        return {name: v if isinstance(v, int) else float(f"{v:.4g}") for name, v in self.figures.items()}


def measure(name: str, **scale: object) -> Result:
    """Runs a benchmark; adds the machine's load average of the last minute to its figures.

    Raises KeyError: There is no benchmark of that name.
    """
    # Imported late: some benchmarks need libraries that the others do without.
    result = getattr(import_module(BENCHMARKS[name][0]), name.replace("-", "_"))(**scale)
    assert isinstance(result, Result)
    return Result({**result.figures, "loadavg": os.getloadavg()[0]}, result.goals)


def in_turns(ways: Sequence[Callable[[R], T]], rounds: Iterable[R], *, warm_up: bool = True) -> list[tuple[T, ...]]:
    """Returns the results of several ways to do the same task, one tuple for each round.

    Args:
        rounds: Run one after the other; every other round calls the ways in reverse order.
        warm_up: Runs each way once with the first round beforehand and discards the result.
    """
    results = []
    for number, round_ in enumerate(rounds):
        if warm_up and not number:
            for way in ways:
                way(round_)
        # The second way finds the caches as the first left them, so the order alternates.
        order = range(len(ways)) if number % 2 == 0 else reversed(range(len(ways)))
        done = {place: ways[place](round_) for place in order}
        results.append(tuple(done[place] for place in range(len(ways))))
    return results


def medians(turns: Iterable[Sequence[Any]], **figures: Callable[..., float]) -> dict[str, float]:
    """Returns the median over the turns of each figure; a figure is a function called with the turn's results."""
    measured = list(turns)
    return {name: statistics.median(of(*turn) for turn in measured) for name, of in figures.items()}


def least_cpu(*ways: Callable[[], object], turns: int) -> list[float]:
    """Returns the least CPU time that each way took, in turns: any disturbance only adds to the time."""
    timed = [lambda _, way=way: seconds_of(way, time.process_time) for way in ways]
    return [min(times) for times in zip(*in_turns(timed, range(turns)), strict=True)]


def seconds_of(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Measures the time that a function takes, in seconds of a clock."""
    began = clock()
    work()
    return clock() - began
