"""Helpers of tests of expert."""

import asyncio

from eval.replay.replay import replay
from serving.views.messages import messages_of
from serving.views.recheck import differences


def reasons(record):
    return {review.reason for review in record.verdict.review}


def assert_reproducible(record):
    """Checks that messages can be rebuilt from the record, and that it replays to the same outcome."""
    for event in record.events:
        for message in messages_of(record, event):
            assert message.exact, (event.kind, message.why)
    again = asyncio.run(replay(record))
    assert (again.differences, again.obstacle) == ((), "")
    assert differences(record) == ()
