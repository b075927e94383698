"""Helpers of tests of summary."""

from court.events import TextLine, TextRead, TextSource
from court.policy import DEFAULT_POLICY
from court.settings import TrialSettings
from court.summary import vote_if_close, weigh

SETTINGS = TrialSettings()
BOX = ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0))


def text_read(source=TextSource.CALLER, confidences=()):
    return TextRead(
        trial_id="t",
        seq=1,
        at="2026-01-01T00:00:00Z",
        text="x",
        source=source,
        lines=[TextLine(text="x" * 10, confidence=c, box=BOX, frame=0) for c in confidences],
    )


def judged(found, settings=SETTINGS, text=None):
    return weigh(found, vote_if_close(found), text or text_read(), settings, policy=DEFAULT_POLICY)
