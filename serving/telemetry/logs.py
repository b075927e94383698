"""Lines of the log, as text or as JSON: who, what, which trial and request, and never anything of a meme.

Our own messages are written without it. Those of libraries may hold anything that they were given (a statement with
its parameters, a request with its body, the text of an exception), so of theirs only where they come from is told; and
of an exception, whosoever, its kind and place. What is written to the log does not depend on anybody's care elsewhere.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import PurePath
from typing import Any, Literal, TextIO

_OURS = ("memecourt", "court", "retrieval", "serving", "eval")
_HARMLESS = ("opentelemetry",)
"""Libraries whose messages are told in full: nothing of a meme is ever handed to them."""

_PLACEHOLDER = re.compile(r"(?:(?P<key>[a-z_]+)=)?%(?!%)[#0\- +]*[\d*]*(?:\.[\d*]+)?[a-zA-Z]")
_BARE = re.compile(r"[^\s\"'=\\]+")
_as_json = json.JSONEncoder(default=str).encode
_STANDARD = ("time", "level", "logger", "message", "error", "where")


def set_up(log_format: Literal["text", "json"], stream: TextIO | None = None) -> None:
    """Has all that this process logs, warns of, or drops in a thread, written by our rules; ours from INFO on.

    Args:
        log_format: Format of the log.
        stream: Stream of the log; standard error if not given.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    root = logging.getLogger()
    for old in root.handlers[:]:
        # It would write the same records by other rules, and so perhaps the text of a meme.
        root.removeHandler(old)
    root.addHandler(handler)
    # Libraries' debug and info lines are not even made; of their warnings only the place is shown.
    root.setLevel(logging.WARNING)
    logging.getLogger("memecourt").setLevel(logging.INFO)
    logging.captureWarnings(True)
    # No line names its thread or process, so that they need not be looked up.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    # By themselves both print the exception with its message, which may contain a meme's text.
    sys.unraisablehook = _unraisable
    threading.excepthook = _in_thread


class TextLines(logging.Formatter):
    """``2026-01-02 03:04:05,678 INFO memecourt.trials trial=… event=…``; further lines of one message are indented."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the lines of a fault's place below it."""
        message, where = safe_parts(record)
        line = f"{_second(record.created // 1)},{int(record.msecs):03d} {record.levelname} {record.name} {message}"
        # The usual case, and every line passes here: one check in place of one for each character.
        if not where and line.isprintable():
            return line
        return "\n  ".join(_visible(part) for part in (line + (f"\n{where}" if where else "")).split("\n"))


class JsonLines(logging.Formatter):
    """One object a line: ``time``, ``level``, ``logger``, ``message``, each ``key=`` of the message, ``error``,
    ``where``."""  # noqa: D205, D209

    def format(self, record: logging.LogRecord) -> str:
        """One line of JSON."""
        message, where = safe_parts(record)
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": message,
        }
        if _of(record, _OURS):
            line |= {key: value for key, value in fields(record).items() if key not in _STANDARD}
        if record.exc_info and record.exc_info[0]:
            line["error"] = record.exc_info[0].__qualname__
        if where:
            line["where"] = where
        return _as_json(line)  # ASCII: no character of a caller ends a line


@lru_cache(maxsize=4)
def _second(created: float) -> str:
    """A second as the library writes it; many lines share one."""
    return time.strftime(logging.Formatter.default_time_format, time.localtime(created))


def fields(record: logging.LogRecord) -> Mapping[str, Any]:
    """Returns the values that a message's template names with ``key=%s``, by key."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    keys = _keys(str(record.msg)) if arguments else ()
    if len(keys) != len(arguments):
        # Better no names than a value under the name of another.
        return {}
    return {key: value for key, value in zip(keys, arguments, strict=True) if key}


@lru_cache(maxsize=256)
def _keys(template: str) -> tuple[str | None, ...]:
    """Returns the key before each placeholder; cached, as the same few templates recur."""
    return tuple(match["key"] for match in _PLACEHOLDER.finditer(template))


def safe_parts(record: logging.LogRecord) -> tuple[str, str]:
    """Returns the parts of a log record that may be shown: its message, and the place of its exception."""
    where = ""
    if record.exc_info and record.exc_info[1]:
        where = _place(record.exc_info[1])
    ours = _of(record, _OURS)
    if not ours and not _of(record, _HARMLESS):
        return f"{PurePath(record.pathname).name}:{record.lineno} (what libraries say is not logged)", where
    if ours and isinstance(record.args, tuple) and record.args:
        keys = _keys(str(record.msg))
        # Only where every placeholder was recognised: else values could be quoted under another's key.
        if len(keys) == len(record.args):
            arguments = tuple(_quoted(value) if key else value for key, value in zip(keys, record.args, strict=True))
            return str(record.msg) % arguments, where
    return record.getMessage(), where


def _of(record: logging.LogRecord, names: tuple[str, ...]) -> bool:
    return record.name.partition(".")[0] in names


def _quoted(value: Any) -> Any:
    """A value after ``key=``, in quotes where it could be taken for more than one."""
    return value if not isinstance(value, str) or _BARE.fullmatch(value) else json.dumps(value, ensure_ascii=False)


def _place(error: BaseException | None) -> str:
    """Kind and place of an exception and of those that it came from; what they say is left out."""
    places: list[str] = []
    # Bounded, for a chain of causes can be of any length.
    while error is not None and len(places) < 10:
        places.append(type(error).__qualname__ + "\n" + "".join(traceback.format_tb(error.__traceback__)).rstrip("\n"))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\nafter ".join(places)


def _visible(line: str) -> str:
    """A line without control characters: what a caller chose must not steer a terminal or pass for another line."""
    return "".join(c if c.isprintable() or c == "\t" else f"<U+{ord(c):04X}>" for c in line)


def _unraisable(dropped: Any) -> None:
    logging.getLogger("memecourt.faults").error("dropped where nobody could catch it", exc_info=dropped.exc_value)


def _in_thread(ended: Any) -> None:
    logging.getLogger("memecourt.faults").error("a thread ended by a fault", exc_info=ended.exc_value)
