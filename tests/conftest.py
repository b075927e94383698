"""Options of the suite, its two tiers, and signal handling for the processes that tests start."""

import asyncio
import fcntl
import inspect
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support import promises
from tests.support.paths import ROOT
from tests.support.virtual_time import VirtualLoop

# Before numpy is imported, here and in every process that tests start. With several workers, BLAS threads mostly wait
# for each other: a library of 120 memes took ten times the CPU time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

SLOW_FOLDERS = ("tests/integration/", "tests/browser/")
"""Folders whose tests start a server or a browser."""
FAST_S = 5.0
"""Seconds, including fixtures, that a test may take without being marked slow."""
DATABASES = frozenset({"postgres_server", "bare_database", "database", "docket_database"})
"""Fixtures that need a PostgreSQL server."""


def pytest_configure():
    # In the background of a shell SIGINT is ignored, under nohup SIGHUP; child processes would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # No deadline for an example: speed belongs to benchmarks, and on a busy machine any example may be slow.
    settings.register_profile("suite", deadline=None)
    settings.load_profile("suite")
    if not os.access(ROOT, os.W_OK):
        # Hypothesis stores failed examples in the repository, which is not writable here.
        settings.register_profile("read-only", settings.get_profile("suite"), database=None)
        settings.load_profile("read-only")


def pytest_addoption(parser):
    parser.addoption("--promises", metavar="FILE", help="write a table of the promises that were shown")
    parser.addoption("--write-golden", action="store_true", help="rewrite the golden files, for review as a diff")
    parser.addoption("--list-overlong", action="store_true", help="list tests of over five seconds not marked slow")


def pytest_collection(session):
    """Imports test files before collection, starting at a different file in each worker.

    Each worker collects every file, and pytest rewrites the assertions of files without cached code, as in a fresh
    clone. Starting elsewhere, each worker finds files cached by the others instead of rewriting all of them.
    """
    if (worker := os.environ.get("PYTEST_XDIST_WORKER")) is None:
        return
    files = sorted(path for folder in session.config.args for path in Path(folder).absolute().rglob("test_*.py"))
    begin = len(files) * int(worker.removeprefix("gw")) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    for path in files[begin:] + files[:begin]:
        # Files that fail to import, or skip themselves, are imported again and reported at collection.
        with suppress(Exception, pytest.skip.Exception):
            import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


def pytest_collection_modifyitems(items):
    """Marks tests as slow that need a server, a browser, PostgreSQL or a corpus; others carry the marker themselves."""
    for item in items:
        parameters = {str(value) for value in item.callspec.params.values()} if hasattr(item, "callspec") else set()
        if (
            any(folder in item.path.as_posix() for folder in SLOW_FOLDERS)
            or item.get_closest_marker("corpus")
            or DATABASES.intersection(item.fixturenames)
            or parameters.intersection({"postgres", "database"})
        ):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def starter(tmp_path_factory):
    """The folder of libraries of a home with the starter library, which is built once for all test processes.

    Building it takes twelve seconds of CPU time, and on a busy machine longer than a server may take to start.
    """
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent  # the one that all workers of this run share
    built = shared / "starter"
    with (shared / "starter.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            unfinished = shared / "starter.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            words = ["judge", "--exit-zero", "--text", "a quiet sunday", "--docket", str(unfinished / "docket.sqlite")]
            subprocess.run(
                [sys.executable, "-m", "serving.cli", *words],
                env={**os.environ, "MEMECOURT_HOME": str(unfinished)},
                check=True,
                capture_output=True,
                timeout=800,
            )
            (unfinished / "libraries").rename(built)
    return built


@pytest.fixture
def starter_home(starter, tmp_path):
    """The test's folder, as a home with a copy of the starter library."""
    shutil.copytree(starter, tmp_path / "libraries")
    return tmp_path


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Runs a test that is a coroutine in an event loop of its own, whose clock jumps if the test is so marked."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    virtual = pyfuncitem.get_closest_marker("virtual_time")
    with asyncio.Runner(loop_factory=VirtualLoop if virtual else None) as runner:
        runner.run(pyfuncitem.obj(**arguments))
    return True


@pytest.hookimpl(tryfirst=True)  # so that skipped tests are included
def pytest_runtest_setup(item):
    """Copies the promise of a test to its report, the only thing that an xdist worker sends back."""
    if (mark := item.get_closest_marker("promise")) is not None:
        item.user_properties.append(("promise", mark.args))


def pytest_terminal_summary(terminalreporter, config):
    """Writes the table of promises, and lists tests that should be marked slow, if requested."""
    if path := config.getoption("--promises"):
        reports = [report for some in terminalreporter.stats.values() for report in some]
        Path(path).write_text(promises.table(report for report in reports if isinstance(report, pytest.TestReport)))
        terminalreporter.line(f"{path} says which promises were shown.")
    if config.getoption("--list-overlong"):
        list_overlong(terminalreporter)


def list_overlong(terminalreporter):
    """Lists tests to mark slow or to make faster; fails none, as any test is slow on a busy machine."""
    seconds = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport) and "slow" not in report.keywords:
                seconds[report.nodeid] += report.duration
    overlong = [(test, duration) for test, duration in seconds.most_common() if duration > FAST_S]
    if overlong:
        terminalreporter.section(f"over {FAST_S:g} s and not marked slow")
        for test, duration in overlong:
            terminalreporter.line(f"{duration:5.1f} s  {test}")


@pytest.fixture(scope="session")
def postgres_server():
    from tests.support.postgres import PostgresServer, programs

    if programs() is None and not os.environ.get("CI"):
        pytest.skip("PostgreSQL is not installed")
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture
def docket_database(postgres_server):
    """URL of a database without a docket."""
    import psycopg

    url = postgres_server.url()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET client_min_messages = warning")
        connection.execute("DROP SCHEMA IF EXISTS memecourt_docket CASCADE")
    return url
