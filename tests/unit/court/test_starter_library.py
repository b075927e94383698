"""Verdicts on the precedents of the starter library."""

import pytest

from court.judgment import with_starter_library
from court.precedents import STARTER
from court.verdict import ReviewReason
from tests.support.fakes import N, RecordingSink, findings
from tests.support.trial import a_court, hear


@pytest.mark.parametrize(("name", "asks"), [(STARTER, True), ("ours", False), ("starter-2", False)])
def test_only_verdicts_of_the_starter_library_ask_for_review_because_of_it(name, asks):
    found = findings([N] * 5)
    library = found.library.model_copy(update={"name": name})
    watch = RecordingSink()
    hear(a_court(found=found.model_copy(update={"library": library})), watch=watch)
    verdict = watch.events[-1].verdict
    assert (ReviewReason.STARTER_LIBRARY in {review.reason for review in verdict.review}) is asks
    assert not asks or verdict.decision == "review"
    assert with_starter_library(verdict, None) == verdict
