"""Contents of a trial as attributes of spans: only if an operator asks for them.

In both dialects that viewers read: OpenTelemetry's conventions for generative AI (``gen_ai.*``) and OpenInference
(https://github.com/Arize-ai/openinference, ``spec/semantic_conventions.md``), which Phoenix and others show. Pictures
are links to the console's veiled ones: no byte of a picture leaves with a trace. The docket is the record; this is a
copy that may lose spans, and that nothing proves.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any
from urllib.parse import quote

from court.events import (
    AnswerGiven,
    AnyEvent,
    ClaimSettled,
    ClaimsFound,
    Described,
    DocumentWeighed,
    EvidenceSearched,
    GuardHeard,
    JudgeRuled,
    ModelCall,
    PrecedentsCited,
    QueriesPlanned,
    QuestionAsked,
    QuestionRuled,
    Summarised,
    SummarisedAhead,
    TextRead,
    VerdictGiven,
)
from court.record import TrialRecord
from serving.views.messages import PictureShown, Request, messages_of

_NO_LINK = "picture sha256:{}"
"""Stands for a picture where there is no console that could show it veiled."""


def of_call(record: TrialRecord, event: AnyEvent, call: ModelCall, console: str) -> dict[str, Any]:
    """Returns the messages and the reply of a model call as attributes.

    Args:
        console: Address of the console, or empty.

    Returns:
        Attributes. Of two requests (a reply that was asked for again, odds) the second is shown: it holds the first,
        or differs from it by the order of two words.
    """
    # A verdict's event tells of two calls, the ruling and the odds.
    made = next((each for each in messages_of(record, event) if each.call == call), None)
    attributes: dict[str, Any] = {"memecourt.messages_exact": bool(made and made.exact)}
    if made is not None and made.requests:
        attributes |= _request(made.requests[-1], record, console)
    reply = _reply_json(event, call)
    finish = [{"role": "assistant", "parts": [{"type": "text", "content": reply}], "finish_reason": "stop"}]
    return attributes | {
        "gen_ai.output.messages": _json(finish),
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": reply,
        "output.value": reply,
        "output.mime_type": "application/json",
    }


def of_search(event: PrecedentsCited) -> dict[str, Any]:
    """The precedents that were found, as the documents of a search."""
    attributes: dict[str, Any] = {}
    for place, found in enumerate(event.findings.exhibits):
        attributes |= {
            f"retrieval.documents.{place}.document.id": found.id,
            f"retrieval.documents.{place}.document.score": found.similarity,
            f"retrieval.documents.{place}.document.content": found.text,
            f"retrieval.documents.{place}.document.metadata": _json({"label": str(found.label)}),
        }
    return attributes


def of_trial(event: AnyEvent) -> dict[str, Any]:
    """Returns an event's contribution to the span of its trial: the judged text, and the verdict."""
    if isinstance(event, TextRead):
        return {"input.value": event.text, "input.mime_type": "text/plain"}
    if isinstance(event, VerdictGiven):
        return {"output.value": event.verdict.model_dump_json(), "output.mime_type": "application/json"}
    return {}


def link_of(picture: PictureShown, record: TrialRecord, console: str) -> str:
    """Returns the console's address of a veiled picture; empty if there is no console."""
    if not console:
        return ""
    place, what = 0, f"precedent:{picture.owner}"
    if picture.owner == "meme":
        place, what = record.opened.meme.frames_used.index(picture.frame), "meme"
    return f"{console}/trials/{quote(record.trial_id, safe='')}/picture?of={quote(what, safe='')}&frame={place}"


def _request(request: Request, record: TrialRecord, console: str) -> dict[str, Any]:
    parts = list(_joined(request.parts))
    attributes: dict[str, Any] = {
        "gen_ai.system_instructions": _json([{"type": "text", "content": request.system}]),
        "llm.input_messages.0.message.role": "system",
        "llm.input_messages.0.message.content": request.system,
        "llm.input_messages.1.message.role": "user",
    }
    user: list[Mapping[str, str]] = []
    for place, part in enumerate(parts):
        at = f"llm.input_messages.1.message.contents.{place}.message_content"
        link = "" if isinstance(part, str) else link_of(part, record, console)
        if link:
            user.append({"type": "uri", "modality": "image", "mime_type": "image/png", "uri": link})
            attributes |= {f"{at}.type": "image", f"{at}.image.image.url": link}
        else:
            # The digest stands in for it: no byte of a picture leaves with a trace.
            text = part if isinstance(part, str) else f"[{_NO_LINK.format(part.sha256 or 'not kept')}]"
            user.append({"type": "text", "content": text})
            attributes |= {f"{at}.type": "text", f"{at}.text": text}
    attributes["gen_ai.input.messages"] = _json([{"role": "user", "parts": user}])
    return attributes


def _joined(parts: Sequence[str | PictureShown]) -> Iterator[str | PictureShown]:
    """Texts that follow each other as one: a span may have no more than so many attributes."""
    for texts, group in groupby(parts, key=lambda part: isinstance(part, str)):
        if texts:
            yield "".join(part for part in group if isinstance(part, str))
        else:
            yield from group


def _reply_json(event: AnyEvent, call: ModelCall) -> str:
    """Returns the parsed reply as JSON: the record stores that, and not the reply's own letters."""
    match event:
        case Described():
            return _json({"description": event.description})
        case QuestionAsked():
            return _json({"question": event.question})
        case AnswerGiven():
            return _json({"answer": event.answer})
        case Summarised() | SummarisedAhead():
            return _json({"summary": event.summary, "justification": event.justification})
        case GuardHeard():
            return _json({"harmful": event.harmful, "categories": list(event.categories), "reason": event.reason})
        case ClaimsFound() | QueriesPlanned() | EvidenceSearched() | DocumentWeighed() | ClaimSettled():
            return event.model_dump_json(exclude={"trial_id", "seq", "at", "kind", "call", "calls", "text"})
        case VerdictGiven(odds=odds) | JudgeRuled(odds=odds) if odds is not None and odds.call == call:
            return _json({"harmful": odds.harmful, "not_harmful": odds.not_harmful})
        case QuestionRuled():
            return event.model_dump_json(include={"chosen", "strengths", "rationale"})
        case JudgeRuled():
            return _json({**event.ruling.model_dump(mode="json"), "rationale": event.rationale})
        case VerdictGiven(ruling=ruling) if ruling is not None:
            return _json({**ruling.model_dump(mode="json"), "rationale": event.verdict.rationale})
        case _:
            return "{}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
