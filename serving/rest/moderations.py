"""``POST /v1/moderations``, compatible with OpenAI's moderation API.

Its answer has no third state. Everything that is not certainly allowed is flagged: harmful, undecided, and all that
needs human review. Errors are returned as errors, also in OpenAI's format, never as a result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from court.errors import BadRequest
from memecourt.v1 import court_pb2 as wire
from serving.errors import Malformed
from serving.rest.api import USUAL_TIMEOUT_S, Api, Call, finished, json_response, timeout_of
from serving.rest.bodies import ReceivedRequest, idempotency_key, whole_body
from serving.rest.messages import loaded, message_of, response_json, with_picture
from serving.rest.operations import JUDGE
from serving.rest.problems import ProblemDetails
from serving.rest.remote_pictures import Fetch, picture_at

PATH = "/v1/moderations"
MODEL = "memecourt"
CATEGORIES: Sequence[str] = (
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/instructions",
    "self-harm/intent",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
)
"""OpenAI's categories. Clients look them up by name, so every result contains all of them."""
_NO_CATEGORY = "other harm"
"""Category of harm of which neither the verdict nor a precedent names one."""
_OPENAI_NAME: Mapping[str, str] = {
    **dict.fromkeys(("race", "gender", "religion", "nationality", "disability"), "hate"),
    "insult": "harassment",
    "animal": "violence",
    "child exploitation": "sexual/minors",
}
"""OpenAI's name of a category of the policy; others have none and stand under their own."""
# Each input is a separate trial, and all share one deadline.
_MAX_INPUTS = 32
_FIELDS = frozenset({"model", "input", "content", "user"})
_PARTS = ("text", "image_url")
"""Types of the parts of an input, each with a field of the same name."""


class ModerationsEndpoint:
    """Endpoint of moderations."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers."""
        request = Request(scope, receive)

        async def work() -> Response:
            return json_response(moderation_of(await self._verdicts(request)))

        if (response := await finished(work, openai_error)) is not None:
            await response(scope, receive, send)

    async def _verdicts(self, request: Request) -> Sequence[wire.JudgeResponse]:
        """Returns the verdict on each input. The first call reads the body, which determines their number."""
        inputs: list[ReceivedRequest] = []

        async def first() -> ReceivedRequest:
            body = await whole_body(request)
            inputs.extend(await judge_requests(loaded(body), idempotency_key(request), self._api.fetch))
            return inputs[0]

        announced = self._api.announced_bytes(JUDGE, request)
        timeout_s = timeout_of(request, USUAL_TIMEOUT_S)
        call = Call(self._api, JUDGE, request, timeout_s=timeout_s, reading=first, announced_bytes=announced)
        verdicts: list[wire.JudgeResponse] = [await call.finish(call.respond())]
        # Sequentially: a list takes only one admission slot at a time, like a single request.
        for each in inputs[1:]:

            async def prepared(each: ReceivedRequest = each) -> ReceivedRequest:
                return each

            # One deadline for all inputs: each gets the time that is left.
            further = Call(
                self._api, JUDGE, request, timeout_s=call.time_left(), reading=prepared, announced_bytes=len(each)
            )
            verdicts.append(await further.finish(further.respond()))
        return verdicts


async def judge_requests(fields: Mapping[str, Any], request_id: str, fetch: Fetch) -> Sequence[ReceivedRequest]:
    """Converts a moderation request to Judge requests: one per text, or one for parts that form a meme.

    Raises:
        BadRequest: The request does not follow OpenAI's format, or uses something unsupported.
    """
    for name in fields.keys() - _FIELDS:
        raise Malformed(f"There is no {name[:100]} here; model, input and content are taken.", field=name[:100])
    for name in ("model", "user"):  # both are OpenAI's, and mean nothing here
        if not isinstance(fields.get(name, ""), str):
            raise Malformed(f"{name} is a name; any will do.", field=name)
    inputs = fields.get("input")
    content = {"content": fields["content"]} if "content" in fields else {}
    texts: Sequence[Any] = [inputs] if isinstance(inputs, str) else inputs if isinstance(inputs, list) else ()
    if not 0 < len(texts) <= _MAX_INPUTS:
        raise _no_input(f"a text, or a list of 1 to {_MAX_INPUTS} texts or parts")
    if all(isinstance(text, str) for text in texts):
        return [
            ReceivedRequest(
                message_of(JUDGE.request, {**content, "text": text, "request_id": _numbered(request_id, n)}), len(text)
            )
            for n, text in enumerate(texts)
        ]
    words, pictures = _parts(texts)
    meme = {**content, "request_id": request_id, **({"text": "\n".join(words)} if words else {})}
    message = message_of(JUDGE.request, meme)
    picture = await picture_at(pictures[0], fetch, "input") if pictures else None
    return [ReceivedRequest(with_picture(message, picture), sum(map(len, words)) + len(picture or b""))]


def _numbered(request_id: str, number: int) -> str:
    """Returns the id of one of several inputs: the caller's for the first; empty if the caller gives none."""
    if not request_id or not number:
        return request_id
    # A repeated request gets the same ids, and so the existing verdict for each input. A digest is never an id that a
    # caller chose for another request, nor too long.
    return f"moderation-{hashlib.sha256(f'{number} {request_id}'.encode()).hexdigest()}"


def _parts(parts: Sequence[Any]) -> tuple[Sequence[str], Sequence[object]]:
    """Returns texts and picture addresses of parts that form one meme."""
    words, pictures = [], []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        # Other fields of a part would not be judged, such as a picture in a text part.
        if kind in _PARTS and any(part[name] is not None for name in part.keys() - {"type", kind}):
            raise _no_input(
                f"parts: one of type {kind} has {kind} and nothing else. Send each text and picture as a part"
            )
        if kind == "text" and isinstance(part.get("text"), str):
            words.append(part["text"])
        elif kind == "image_url" and isinstance(part.get("image_url"), dict):
            pictures.append(part["image_url"].get("url"))
        else:
            raise _no_input('parts: {"type": "text", "text": …} or {"type": "image_url", "image_url": {"url": …}}')
    if len(pictures) > 1:
        raise _no_input("one meme, with at most one picture. Send each in a request of its own")
    return words, pictures


def _no_input(what: str) -> BadRequest:
    return Malformed(f"input is {what}.", field="input")


def moderation_of(verdicts: Sequence[wire.JudgeResponse]) -> Mapping[str, Any]:
    """Builds the answer in OpenAI's format, with the verdict of Judge added to each result."""
    return {
        "id": f"modr-{verdicts[0].verdict_id}",
        "model": MODEL,
        "results": [_result(verdict) for verdict in verdicts],
    }


def _result(verdict: wire.JudgeResponse) -> Mapping[str, Any]:
    shares = _shares(verdict)
    harm = verdict.harm_score if verdict.HasField("harm_score") else _HARM_OF_LABEL.get(verdict.label, 0.5)
    weighed = [kind for kind, there in (("text", verdict.text.text), ("image", verdict.picture.bytes_sha256)) if there]
    names = dict.fromkeys((*CATEGORIES, *shares))
    found_harmful = verdict.label == wire.LABEL_HARMFUL
    return {
        "flagged": verdict.decision != "allow",
        "categories": {name: found_harmful and shares.get(name) == 1 for name in names},
        "category_scores": {name: harm * shares.get(name, 0.0) for name in names},
        "category_applied_input_types": {name: weighed if name in shares else [] for name in names},
        "memecourt": response_json(verdict),
    }


_HARM_OF_LABEL = {wire.LABEL_HARMFUL: 1.0, wire.LABEL_NOT_HARMFUL: 0.0}


def _shares(verdict: wire.JudgeResponse) -> Mapping[str, float]:
    """Returns the share of each category that the harm may fall under; 1 for the likeliest.

    The verdict's own finding decides; without one, the categories of the harmful precedents, each by its similarity.
    """
    weights: dict[str, float] = {}
    if verdict.finding.category:
        weights[_name(verdict.finding.category)] = 1.0
    else:
        for precedent in verdict.precedents:
            if precedent.label == wire.LABEL_HARMFUL and precedent.similarity > 0:
                for name in map(_name, precedent.categories or (_NO_CATEGORY,)):
                    weights[name] = weights.get(name, 0.0) + precedent.similarity
    largest = max(weights.values(), default=0.0)
    return {name: weight / largest for name, weight in weights.items()} or {_NO_CATEGORY: 1.0}


def _name(category: str) -> str:
    own = category.strip().lower()
    return _OPENAI_NAME.get(own, own)


def openai_error(problem: ProblemDetails) -> Response:
    """Builds the response for a problem in OpenAI's format."""
    kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    kind = kinds.get(problem.status, "invalid_request_error" if problem.status < 500 else "server_error")
    error = {
        "message": problem.body["detail"],
        "type": kind,
        "param": problem.body.get("field"),
        "code": problem.body["reason"],
    }
    return json_response({"error": error}, problem.status, **dict(problem.headers))
