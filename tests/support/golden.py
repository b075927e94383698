"""Golden copies of the figures that commands print as JSON, so that no figure moves unseen."""

import json
import math
import re

from tests.support.paths import GOLDEN, TESTS

FOLDER = TESTS / "golden" / "figures"
_VARIES = frozenset(
    [
        "command",
        "commit",
        "created",
        "latency_s",
        "machine",
        "python",
        "seconds",
        "software",
        "tokens",
        "tokens_in",
        "usd",
        "made",
    ]
)
"""Keys whose values depend on the clock, the machine, or the words of a prompt."""


def check_figures(request, name, figures, *, varies=()):
    """Compares figures with a golden file; ``pytest --write-golden`` rewrites the file, for review as a diff.

    Args:
        varies: Keys whose values differ from run to run.
    """
    path, lasting = FOLDER / f"{name}.json", _lasting(figures, _VARIES | frozenset(varies))
    if request.config.getoption("--write-golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(lasting, indent=1, ensure_ascii=False) + "\n", "utf-8")
    differences = list(_differences(json.loads(path.read_text("utf-8")), lasting, name))
    assert not differences, "\n".join(differences[:20])


def _lasting(value, varies):
    match value:
        case dict():
            return {key: _lasting(each, varies) for key, each in value.items() if key not in varies}
        case list() | tuple():
            return [_lasting(each, varies) for each in value]
        case str():
            # Folders of tests, times, and digests of files that other releases of a library write differently.
            value = re.sub(r"/[\w./-]*pytest-[\w./-]*/", "…/", re.sub(r"sha256:\w+", "sha256:…", value))
            return re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)", "…", value)
        case float():
            # Fewer digits than a sum over memes in another order leaves alone.
            return float(f"{value:.12g}")
        case _:
            return value


def _differences(golden, found, place):
    """Places where figures differ by more than the last bits of a float."""
    if isinstance(golden, dict) and isinstance(found, dict):
        yield from (f"{place}: {key!r} is in one only" for key in golden.keys() ^ found.keys())
        for key in golden.keys() & found.keys():
            yield from _differences(golden[key], found[key], f"{place}.{key}")
    elif isinstance(golden, list) and isinstance(found, list):
        if len(golden) != len(found):
            yield f"{place}: {len(golden)} became {len(found)}"
        for number, (one, other) in enumerate(zip(golden, found, strict=False)):
            yield from _differences(one, other, f"{place}[{number}]")
    elif isinstance(golden, float) and isinstance(found, int | float):
        if not math.isclose(golden, found, rel_tol=1e-9, abs_tol=1e-12):
            yield f"{place}: {golden} became {found}"
    elif golden != found:
        yield f"{place}: {golden!r} became {found!r}"


def assert_matches_golden(name, text, request):
    """Compares text with a golden file; `pytest --write-golden` rewrites the file, for review as a diff."""
    path = GOLDEN / name
    if request.config.getoption("--write-golden"):
        path.write_text(text)
    assert text == path.read_text()
