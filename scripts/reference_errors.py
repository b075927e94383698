"""The reference page of errors, made of what the code raises: each reason with its statuses and its message.

A reason is an argument of the error's class where it is raised, or the class's own. The statuses follow from the class
by the same functions that answer requests.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.rpc import code_pb2, error_details_pb2

from court.backends.pictures.refusals import words
from court.errors import BadPicture, CourtError, ReplyUnusable, Unavailable
from court.record import TrialAborted
from scripts.reference_api import cell
from serving.rest.problems import STATUS_OF_CODE, problem_of
from serving.rpc.status import status_of

_ROOT = Path(__file__).parent.parent
_FOLDERS = ("court", "retrieval", "serving")
_RETRY: Mapping[str, str] = {
    "ABORTED": "may succeed",
    "DEADLINE_EXCEEDED": "with more time",
    "RESOURCE_EXHAUSTED": "after the delay",
    "INTERNAL": "report it",
    "FAILED_PRECONDITION": "once that changes",
    "UNAUTHENTICATED": "with another token",
    "PERMISSION_DENIED": "with another token",
}
_NEVER = "fails again"
_MOST = 3
"""Messages of a reason that the page quotes at most: some have one for each field of a request."""
_CLASS = re.compile(r"(?:^|\.)[A-Z]\w+$")


@dataclass(frozen=True, slots=True)
class RaisedError:
    """An error as one place of the code raises it; ``again`` says whether a retry helps."""

    reason: str
    code: str
    http: int
    again: str
    message: str


def errors() -> Iterator[str]:
    """Yields the page, part by part."""
    yield (
        "# Errors\n\nEach error has a stable `reason`, a code of gRPC and a status of HTTP ([how they are "
        "sent](../http.md#errors)). *After the delay*: in `RetryInfo` or `Retry-After`. *Check first*: part of the "
        "work may be done. Some occur on the command line alone. What to do by symptom: "
        "[troubleshooting](../troubleshooting.md).\n"
    )
    found = raised()
    for code in sorted({one.code for one in found}, key=_order):
        rows = [one for one in found if one.code == code]
        yield f"\n## {code}\n\n| reason | HTTP | again? | says |\n|---|--:|---|---|\n"
        for reason in sorted({one.reason for one in rows}):
            same = [one for one in rows if one.reason == reason]
            messages = list(dict.fromkeys(one.message for one in same if one.message))
            says = " / ".join([*messages[:_MOST], *["…"][: len(messages) - _MOST]])
            again = ", or ".join(dict.fromkeys(one.again for one in same))
            yield f"| `{reason}` | {same[0].http} | {again} | {cell(says)} |\n"


def _order(code: str) -> int:
    return int(STATUS_OF_CODE.get(code_pb2.Code.Value(code), 999))


def raised() -> list[RaisedError]:
    """Returns every error that the code can send, in the order of its files."""
    found: list[RaisedError] = []
    for folder in _FOLDERS:
        for path in sorted((_ROOT / folder).rglob("*.py")):
            # The command line answers people at once; what it raises by itself has no status.
            if path.relative_to(_ROOT).parts[:2] != ("serving", "cli") and "rror" in path.read_text("utf-8"):
                found += _raised_in(path)
    # Workers send their reason alone, and the message is put together from a file.
    found += [_error(BadPicture, reason, _words(ast.Constant(text), {}), {}) for reason, text in words().items()]
    return found


def _raised_in(path: Path) -> Iterator[RaisedError]:
    tree = ast.parse(path.read_text("utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _names_a_class(node)]
    # Not imported without need: scripts of the database run when they are.
    if not calls:
        return
    names = vars(importlib.import_module(".".join(path.relative_to(_ROOT).with_suffix("").parts)))
    kinds = _kinds()
    for call in calls:
        kind, texts = kinds.get(ast.unparse(call.func).rpartition(".")[2]), list(call.args)
        # Handed to a function that makes it later: partial(Overrun, "…", reason="…").
        if kind is None and texts and (kind := kinds.get(ast.unparse(texts[0]))) is not None:
            del texts[0]
        if kind is not None:
            arguments = {one.arg: one.value for one in call.keywords}
            message = texts[0] if texts else None
            for reason in _reasons(kind, arguments.get("reason"), names):
                yield _error(kind, reason, _words(message, names), arguments)
        elif ast.unparse(call.func) == "UnusableReply":
            first, fault = call.args
            for each in _reasons(ReplyUnusable, first, names):
                yield _error(ReplyUnusable, each, _words(fault, names), {})


def _names_a_class(call: ast.Call) -> bool:
    return any(_CLASS.search(ast.unparse(one)) for one in (call.func, *call.args[:1]))


def _kinds(kind: type[CourtError] = CourtError) -> dict[str, type[CourtError]]:
    """Classes of errors by name, without those that only carry another error on."""
    below = {name: one for each in kind.__subclasses__() for name, one in _kinds(each).items()}
    return below if kind is TrialAborted else {kind.__name__: kind, **below}


def _reasons(kind: type[CourtError], reason: ast.expr | None, names: Mapping[str, Any]) -> set[str]:
    if reason is None:
        return {kind.default_reason}
    # Either side of a condition is one; a name is a constant of the module, or handed in from where it is constant.
    parts = list(ast.walk(reason))
    values = {part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)}
    values |= {str(names[part.id]) for part in parts if isinstance(part, ast.Name) and part.id in names}
    return {value for value in values if value.isupper()}


def _error(kind: type[CourtError], reason: str, message: str, arguments: Mapping[Any, ast.expr]) -> RaisedError:
    # Made without arguments of its class, which differ: the statuses follow from class, reason and delay.
    error = kind.__new__(kind)
    CourtError.__init__(error, message or reason, reason=reason)
    if isinstance(error, Unavailable):
        delay = arguments.get("retry_after")
        error.retry_after = None if isinstance(delay, ast.Constant) and delay.value is None else 1.0
    status = status_of(error)
    code = code_pb2.Code.Name(status.code)
    delayed = any(one.Is(error_details_pb2.RetryInfo.DESCRIPTOR) for one in status.details)
    again = _RETRY.get(code, _NEVER) if code != "UNAVAILABLE" else "after the delay" if delayed else "check first"
    return RaisedError(reason, code, int(problem_of(status).status), again, message)


def _words(message: ast.expr | None, names: Mapping[str, Any]) -> str:
    """The message as far as the source tells it; what differs from case to case as an ellipsis."""
    if isinstance(message, ast.Constant):
        return re.sub(r"\{[^}]*\}", "…", str(message.value))
    if isinstance(message, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in message.values)
    if isinstance(message, ast.Name) and isinstance(names.get(message.id), str):
        return str(names[message.id])
    return ""
