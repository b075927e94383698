"""Log formatting, as text or JSON, which never reveals anything of a meme.

Our own messages contain none. Those of libraries may contain anything (a statement with its parameters, a request with
its body, the message of an exception), so only their origin is logged; of any exception, only type and traceback. So
the log is safe regardless of the care taken elsewhere.
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
"""Libraries whose messages are logged in full, since they never receive anything of a meme."""

_PLACEHOLDER = re.compile(r"(?:(?P<key>[a-z_]+)=)?%(?!%)[#0\- +]*[\d*]*(?:\.[\d*]+)?[a-zA-Z]")
_BARE = re.compile(r"[^\s\"'=\\]+")
_as_json = json.JSONEncoder(default=str).encode
_STANDARD = ("time", "level", "logger", "message", "error", "where")


def set_up(log_format: Literal["text", "json"], stream: TextIO | None = None) -> None:
    """Applies these rules to all logs, warnings and uncaught errors of the process; our own messages from INFO on."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    root = logging.getLogger()
    for old in root.handlers[:]:
        # It would write the same records by other rules, and perhaps the text of a meme.
        root.removeHandler(old)
    root.addHandler(handler)
    # Libraries' debug and info messages are not even created; of their warnings only the origin is shown.
    root.setLevel(logging.WARNING)
    logging.getLogger("memecourt").setLevel(logging.INFO)
    logging.captureWarnings(True)
    # No line contains thread or process, so don't look them up.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    # By default both print the exception's message, which may contain a meme's text.
    sys.unraisablehook = _unraisable
    threading.excepthook = _in_thread


class TextLines(logging.Formatter):
    """``2026-01-02 03:04:05,678 INFO memecourt.trials trial=… event=…``; further lines of one message are indented."""

    def format(self, record: logging.LogRecord) -> str:
        """Formats a line, followed by the lines of a traceback."""
        message, where = safe_parts(record)
        line = f"{_second(record.created // 1)},{int(record.msecs):03d} {record.levelname} {record.name} {message}"
        # The common case, on the path of every line: one check instead of one per character.
        if not where and line.isprintable():
            return line
        return "\n  ".join(_visible(part) for part in (line + (f"\n{where}" if where else "")).split("\n"))


class JsonLines(logging.Formatter):
    """One object a line: ``time``, ``level``, ``logger``, ``message``, each ``key=`` of the message, ``error``,
    ``where``."""  # noqa: D205, D209

    def format(self, record: logging.LogRecord) -> str:
        """Formats a line of JSON."""
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
        return _as_json(line)  # ASCII, so that no character from a caller can end the line


@lru_cache(maxsize=4)
def _second(created: float) -> str:
    """Formats a second as the library does; cached, since many lines share it."""
    return time.strftime(logging.Formatter.default_time_format, time.localtime(created))


def fields(record: logging.LogRecord) -> Mapping[str, Any]:
    """Returns the values that a message's template names with ``key=%s``, by key."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    keys = _keys(str(record.msg)) if arguments else ()
    if len(keys) != len(arguments):
        # Rather no names than a value under the wrong name.
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
        where = _traceback_of(record.exc_info[1])
    ours = _of(record, _OURS)
    if not ours and not _of(record, _HARMLESS):
        return f"{PurePath(record.pathname).name}:{record.lineno} (what libraries say is not logged)", where
    if ours and isinstance(record.args, tuple) and record.args:
        keys = _keys(str(record.msg))
        # Only if every placeholder was recognised: otherwise values could appear under the wrong key.
        if len(keys) == len(record.args):
            arguments = tuple(_quoted(value) if key else value for key, value in zip(keys, record.args, strict=True))
            return str(record.msg) % arguments, where
    return record.getMessage(), where


def _of(record: logging.LogRecord, names: tuple[str, ...]) -> bool:
    return record.name.partition(".")[0] in names


def _quoted(value: Any) -> Any:
    """Quotes a value after ``key=`` if it could be mistaken for more than one."""
    return value if not isinstance(value, str) or _BARE.fullmatch(value) else json.dumps(value, ensure_ascii=False)


def _traceback_of(error: BaseException | None) -> str:
    """Returns types and tracebacks of an exception and its causes, without their messages."""
    parts: list[str] = []
    # Limited, since a chain of causes can be of any length.
    while error is not None and len(parts) < 10:
        parts.append(type(error).__qualname__ + "\n" + "".join(traceback.format_tb(error.__traceback__)).rstrip("\n"))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\nafter ".join(parts)


def _visible(line: str) -> str:
    """Escapes control characters: text from callers must not control a terminal or fake another line."""
    return "".join(c if c.isprintable() or c == "\t" else f"<U+{ord(c):04X}>" for c in line)


def _unraisable(dropped: Any) -> None:
    logging.getLogger("memecourt.faults").error("dropped where nobody could catch it", exc_info=dropped.exc_value)


def _in_thread(ended: Any) -> None:
    logging.getLogger("memecourt.faults").error("a thread ended by a fault", exc_info=ended.exc_value)
