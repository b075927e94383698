"""Options of the suite, its two tiers, and what processes that tests start take over from it."""

from __future__ import annotations

import os
import signal
from collections import Counter
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support import promises

ROOT = Path(__file__).parents[1]
SLOW_FOLDERS = ("tests/integration/", "tests/browser/")
"""Folders whose tests start a server or a browser of their own."""
FAST_S = 5.0
"""Seconds that a test may take without being slow, with what is set up for it."""
DATABASES = frozenset({"postgres_server", "bare_database", "database", "docket_database"})
"""Fixtures that need a PostgreSQL server."""


def pytest_configure():
    # A shell that runs us in the background has SIGINT ignored, nohup has SIGHUP; what we start would ignore them too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if not os.access(ROOT, os.W_OK):
        # Examples that failed are remembered beside the source, where that can be written.
        settings.register_profile("read-only", database=None)
        settings.load_profile("read-only")


def pytest_addoption(parser):
    parser.addoption("--promises", metavar="FILE", help="write a table of the promises that were shown")
    parser.addoption("--write-golden", action="store_true", help="rewrite the golden files, for review as a diff")
    parser.addoption("--list-overlong", action="store_true", help="list tests of over five seconds not marked slow")


def pytest_collection(session):
    """Import the test files of whole folders beginning with other ones in each worker, before they are collected.

    Each worker collects each file, and pytest rewrites the assertions of those that it has no stored code of, as in a
    fresh clone. Beginning elsewhere, each worker finds what the others have stored, instead of rewriting all of it too.
    """
    if (worker := os.environ.get("PYTEST_XDIST_WORKER")) is None:
        return
    files = sorted(path for folder in session.config.args for path in Path(folder).absolute().rglob("test_*.py"))
    begin = len(files) * int(worker.removeprefix("gw")) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    for path in files[begin:] + files[:begin]:
        # What can't be imported, or skips itself, is imported again and reported when it is collected.
        with suppress(Exception, pytest.skip.Exception):
            import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


def pytest_collection_modifyitems(items):
    """Mark as slow what needs a server, a browser, PostgreSQL or a corpus; single slow tests carry the marker."""
    for item in items:
        parameters = {str(value) for value in item.callspec.params.values()} if hasattr(item, "callspec") else set()
        if (
            any(folder in item.path.as_posix() for folder in SLOW_FOLDERS)
            or item.get_closest_marker("corpus")
            or DATABASES.intersection(item.fixturenames)
            or parameters.intersection({"postgres", "database"})
        ):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)  # also of a test that is skipped then
def pytest_runtest_setup(item):
    """Hand the promise that a test shows on to its report, which is all that comes back from another process."""
    if (mark := item.get_closest_marker("promise")) is not None:
        item.user_properties.append(("promise", mark.args))


def pytest_terminal_summary(terminalreporter, config):
    """Write the table of promises, and list what should be marked slow, as far as either was asked for."""
    if path := config.getoption("--promises"):
        reports = [report for some in terminalreporter.stats.values() for report in some]
        Path(path).write_text(promises.table(report for report in reports if isinstance(report, pytest.TestReport)))
        terminalreporter.line(f"{path} says which promises were shown.")
    if config.getoption("--list-overlong"):
        list_overlong(terminalreporter)


def list_overlong(terminalreporter):
    """List what should be marked slow or made faster; no failure, since a busy machine makes any test slow."""
    seconds = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport) and "slow" not in report.keywords:
                seconds[report.nodeid] += report.duration
    overlong = [(test, took) for test, took in seconds.most_common() if took > FAST_S]
    if overlong:
        terminalreporter.section(f"over {FAST_S:g} s and not marked slow")
        for test, took in overlong:
            terminalreporter.line(f"{took:5.1f} s  {test}")
