"""Helpers of tests of telemetry."""

import logging
import sys
import threading
from contextlib import contextmanager

from court.events import (
    Summarised,
    SummarisedAhead,
    VerdictGiven,
)
from court.ports import ChatReply, FinishReason
from serving.telemetry.logs import set_up
from tests.support.cast import as_json


def described(request):
    """A description by a server that has half of the prompt cached and reports a model name of its own."""
    return ChatReply(
        text=as_json({"description": "A crowd stands under a green flag."}),
        finish=FinishReason.STOP,
        model="proposer-model-as-served",
        tokens_in=200,
        tokens_out=20,
        tokens_cached=100,
        latency_s=3.5,
        server="http://model.example:8000/v1",
    )


def calls_of(record):
    """Yields each model call of a record with the number of requests it took; a call in two events counts once."""
    ahead = {(event.side, event.round) for event in record.all(SummarisedAhead)}
    for event in record.events:
        call = getattr(event, "call", None)
        if call is not None and not (isinstance(event, Summarised) and (event.side, event.round) in ahead):
            yield call, 2 if call.fault else 1
        if isinstance(event, VerdictGiven) and event.odds:
            yield event.odds.call, 2


class Lines:
    """Collects what a logger writes; iterates over its lines."""

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text

    def flush(self):
        pass

    def __iter__(self):
        return iter(self.text.splitlines())


@contextmanager
def logging_as(log_format):
    """Sets up the process's logging as a server does, and restores it afterwards."""
    root, ours = logging.getLogger(), logging.getLogger("memecourt")
    before = root.handlers[:], root.level, ours.level, sys.unraisablehook, threading.excepthook
    lines = Lines()
    set_up(log_format, lines)
    try:
        yield lines
    finally:
        logging.captureWarnings(False)
        root.handlers[:], root.level, ours.level, sys.unraisablehook, threading.excepthook = before
        logging.getLogger().setLevel(before[1])
        ours.setLevel(before[2])
