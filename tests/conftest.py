"""Options of the suite, and what processes that tests start take over from it."""

import signal


def pytest_configure():
    # A shell that runs us in the background has SIGINT ignored, and what we start would ignore it too.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption("--write-golden", action="store_true", help="rewrite the golden files, for review as a diff")
