"""A full trial with personal data in every text, for tests of what leaves the docket."""

from datetime import UTC, datetime

from court.events import VerdictReviewed
from court.record import TrialRecord
from tests.support.cast import RULING, Cast
from tests.support.messages import SHOWN, run_trial

AT = datetime(2026, 3, 4, 5, 6, tzinfo=UTC)
SECRET = "Erika Mustermann of 5 Elm Road, +43 660 123"


def a_trial(**lines):
    """A full trial that found harm, with personal data in every text."""
    texts = {"description": SECRET, "answer": SECRET, "summary": SECRET, "justification": SECRET}
    lines = {
        "describe": {"description": SECRET},
        "answer": {"answer": SECRET},
        "summarise": {key: texts[key] for key in ("summary", "justification")},
        "judge": {**RULING, "rationale": SECRET, "harmful_evidence": [SECRET]},
        **lines,
    }
    exhibits = tuple(each.model_copy(update={"text": SECRET}) for each in SHOWN.exhibits)
    return run_trial(Cast(rounds=2, **lines), text=SECRET, found=SHOWN.model_copy(update={"exhibits": exhibits}))


def reviewed(record, outcome="UPHELD", label="HARMFUL", clause=""):
    review = VerdictReviewed(
        trial_id="t", seq=len(record.events), at=AT, outcome=outcome, label=label, reason=SECRET, reviewer="Ruth",
        clause=clause,
    )  # fmt: skip
    return TrialRecord.of((*record.events, review))
