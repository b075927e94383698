"""What a benchmark is: figures, the bounds they are held against, and whether they hold."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module

BENCHMARKS = {
    "startup": ("eval.perf.startup", "CPU time of `memecourt --help` over that of an empty Python"),
    "trial-floor": ("eval.perf.trials.floor", "wall time of a full trial over its longest chain of calls"),
    "trial-naive": ("eval.perf.trials.naive", "wall time of Algorithm 1 as printed over that of a full trial"),
    "saturation": ("eval.perf.trials.saturation", "share of a busy model server's capacity that becomes verdicts"),
    "vllm-steps": ("eval.perf.vllm.steps", "steps that a real vLLM's engine takes for a full trial over those it must"),
    "prefix-cache": ("eval.perf.vllm.prefix_cache", "share of prompts from a real vLLM's cache over what could be"),
    "clip-encode": (
        "eval.perf.library.clip_encode",
        "pictures a second that CLIP encodes over a bare pass of the model",
    ),
    "library": (
        "eval.perf.library.library",
        "memory of a library of 10^6 memes over its vectors, and changing it in use",
    ),
    "search": ("eval.perf.library.search", "time of a search among 10^5 and 10^6 memes over that of faiss.knn"),
    "batch": ("eval.perf.batch", "time of a long batch run killed three times over that of one left alone"),
    "pgvector": ("eval.perf.library.pgvector_search", "time of a search in PostgreSQL with pgvector over that of ours"),
    "near-memes": (
        "eval.perf.library.near_memes",
        "memory of 10^5 known memes, and time to look among them for near ones",
    ),
    "service": ("eval.perf.load.service", "requests a second whose verdict is ready, over those of a bare gRPC echo"),
    "service-summary": (
        "eval.perf.load.service_summary",
        "summary trials a second of a server over what its encoder does",
    ),
    "slow-streams": ("eval.perf.load.slow_streams", "p99 of normal load beside 1,000 slow or half-open callers"),
    "bombs": ("eval.perf.load.bombs", "p95 of normal load beside 20 hostile pictures a second"),
    "memory": ("eval.perf.load.service_memory", "memory of a server after 100,000 requests over that after 10,000"),
    "overload": (
        "eval.perf.load.overload",
        "goodput at four times the capacity over the best, and what the rest is told",
    ),
    "soak": ("eval.perf.load.soak", "20 minutes of full trials at saturation with faults: no growth, nothing lost"),
    "call-cpu": ("eval.perf.trials.call_cpu", "CPU time of this process for a call of a model"),
    "docket": ("eval.perf.docket", "events a second that 32 trials append over what the database alone takes"),
    "docket-verify": ("eval.perf.docket_verify", "events of a docket of 10^5 that are verified a second"),
    "ranking": ("eval.perf.ranking", "CPU time of ranking 10^6 battles over evalica's, and what intervals cover"),
}
"""Name of each benchmark, the module that holds its ``measure() -> Result``, and what it measures."""

_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
}


@dataclass(frozen=True, slots=True)
class Result:
    """What a benchmark measured.

    Attributes:
        name: Of the benchmark.
        figures: What was measured, by name.
        goals: A bound per figure, such as ``<= 1.05``; figures without one are for information.
    """

    name: str
    figures: dict[str, float]
    goals: dict[str, str]

    def held(self, figure: str) -> bool:
        """Whether a figure is within its bound. Raises KeyError if it has none or was not measured."""
        comparison, bound = self.goals[figure].split()
        return _COMPARISONS[comparison](self.figures[figure], float(bound))

    @property
    def holds(self) -> bool:
        """Whether all bounds hold."""
        return all(self.held(figure) for figure in self.goals)

    def as_json(self) -> dict[str, object]:
        """The form that tools read."""
        return {"name": self.name, "figures": self.figures, "goals": self.goals, "holds": self.holds}


def measure(name: str) -> Result:
    """Runs a benchmark. Raises KeyError if there is none of that name."""
    result = import_module(BENCHMARKS[name][0]).measure()
    assert isinstance(result, Result)
    return result
