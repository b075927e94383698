"""The table of promises that ``make test-full`` writes: each with its figure and the result of its tests."""

import platform
from collections.abc import Iterable
from datetime import UTC, datetime

import pytest

from tests.support.sizes import FULL

HEAD = """# Promises at their full figures

`make test-full` writes this table. What each promise says stands in [security.md](security.md).

"""


def table(reports: Iterable[pytest.TestReport]) -> str:
    """Returns the table as Markdown, one row per promise; all parametrizations of a test must pass."""
    outcomes: dict[tuple[str, str], list[tuple[str, str]]] = {}
    seconds: dict[tuple[str, str], float] = {}
    for report in reports:
        row = next((tuple(value) for name, value in report.user_properties if name == "promise"), None)
        if row is None or len(row) != 2:
            continue
        seconds[row] = seconds.get(row, 0.0) + report.duration
        if report.when == "call" or report.outcome != "passed":
            outcomes.setdefault(row, []).append((report.outcome, why(report)))
    lines = ["| promise | figure | result | seconds |", "|---|---|---|--:|"]
    for name, figure in sorted(outcomes):
        lines.append(f"| {name} | {figure} | {result(outcomes[name, figure])} | {seconds[name, figure]:,.0f} |")
    sizes = "full" if FULL else "small: these are not the figures of the promises"
    when = f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, {platform.machine()}; sizes: {sizes}"
    return f"{HEAD}Run on {when}.\n\n" + "\n".join(lines) + "\n"


def result(outcomes: list[tuple[str, str]]) -> str:
    """Describes the result of a promise's tests."""
    kinds = {outcome for outcome, _ in outcomes}
    if "failed" in kinds:
        return f"**broken** ({sum(outcome == 'failed' for outcome, _ in outcomes)} of {len(outcomes)} failed)"
    if kinds == {"passed"}:
        return "kept"
    reasons = ", ".join(sorted({why for outcome, why in outcomes if outcome == "skipped"}))
    return f"not shown: {reasons}" if kinds == {"skipped"} else f"kept, in part not shown: {reasons}"


def why(report: pytest.TestReport) -> str:
    """Returns the reason of a skipped test; empty for others."""
    if report.outcome != "skipped" or not isinstance(report.longrepr, tuple):
        return ""
    return report.longrepr[2].removeprefix("Skipped: ")
