"""Helpers of tests of cli."""

from tests.support.paths import GOLDEN


def assert_matches_golden(name, text, request):
    """Compares text with a golden file; `pytest --write-golden` rewrites the file, for review as a diff."""
    path = GOLDEN / name
    if request.config.getoption("--write-golden"):
        path.write_text(text)
    assert text == path.read_text()
