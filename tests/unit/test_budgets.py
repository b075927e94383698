"""The size of the project stays within the bounds of tests/budgets.toml."""

import re
import tomllib

import pytest

from court import events
from court.verdict import ReviewReason
from tests.support.paths import ROOT

BUDGETS = tomllib.loads((ROOT / "tests" / "budgets.toml").read_text())
PRODUCT = ["court", "retrieval", "serving", "eval", "proto", "integrations"]
GENERATED = re.compile(r"_pb2(_grpc)?\.py$")


def modules(folder):
    return [file for file in (ROOT / folder).rglob("*.py") if not GENERATED.search(file.name)]


@pytest.mark.parametrize("folder", BUDGETS["lines"])
def test_folder_stays_within_its_budget_of_lines(folder):
    lines = sum(file.read_bytes().count(b"\n") for file in modules(folder))
    assert lines > 0
    assert lines <= BUDGETS["lines"][folder], f"{folder} has {lines} lines: delete some, or raise its budget visibly"


def test_few_files_enumerate_kinds_of_events():
    kinds = [kind.__name__ for kind in events.EVENT_KINDS]
    assert len(kinds) > 20
    naming = re.compile(rf"\b({'|'.join(kinds)})\b")
    files = {
        str(file.relative_to(ROOT)): len(set(naming.findall(file.read_text())))
        for folder in PRODUCT
        for file in modules(folder)
    }
    many = {name: count for name, count in files.items() if count >= 6}
    assert "court/events.py" in many
    assert len(many) <= BUDGETS["event_kinds"]["files"], many


def test_reason_for_review_is_named_in_few_files():
    files = [file for folder in ("court", "retrieval", "serving", "proto") for file in modules(folder)]
    named = [set(re.findall(r"\w+", file.read_text())) for file in [*files, ROOT / "proto/memecourt/v1/court.proto"]]
    # One of them is the reason of an error too.
    reasons = [reason.name for reason in ReviewReason if reason is not ReviewReason.REPLY_CUT]
    counts = {name: sum(bool({name, f"REVIEW_REASON_{name}"} & words) for words in named) for name in reasons}
    assert max(counts.values()) <= BUDGETS["review_reasons"]["files"], counts
