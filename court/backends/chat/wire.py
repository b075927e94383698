"""Chat completions as they go over the wire: our request as a body, the body of the answer as our reply.

The SDK builds its answers without checking them; here they are read strictly, from the bytes.
"""

from __future__ import annotations

import base64
import codecs
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from court.backends.chat.failures import Failure, garbled, of_status
from court.backends.chat.features import Capabilities
from court.meme import Frame
from court.messages import file_sha256
from court.messages import in_words as in_words  # offered here too: it is part of what is sent
from court.ports import ChatReply, ChatRequest, FinishReason

TOP = 20
"""Most likely tokens that a server is asked for: the most that the API allows."""
_TOKEN_ID = "token_id:"  # how vLLM writes a token when asked for ids
_OPENS_THOUGHT = re.compile(r"\s*<think>")


def digest(frame: Frame) -> str:
    """SHA-256 of the PNG, in hex."""
    return file_sha256(frame.png)


def messages(request: ChatRequest, capabilities: Capabilities, known: Mapping[str, None]) -> list[dict[str, Any]]:
    """The messages; pictures whose id is among ``known`` are named by it instead of being sent."""
    parts: list[str | Frame] = [*request.parts]
    if request.reply_schema is not None and not capabilities.json_schema:
        parts.append(in_words(request.reply_schema))
    content: str | list[dict[str, Any]]
    if any(isinstance(part, Frame) for part in parts):
        content = [_part(part, capabilities, known) for part in parts]
    else:
        # As one string, for every server takes that, and none puts anything of its own between the parts.
        content = "".join(part for part in parts if isinstance(part, str))
    message = {"role": "user", "content": content}
    # Templates of guard models know no system message, and refuse one that is empty.
    return [{"role": "system", "content": request.system}, message] if request.system else [message]


def response_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema, as a server that keeps to it is told."""
    return {"type": "json_schema", "json_schema": {"name": "reply", "schema": dict(schema), "strict": True}}


def _part(part: str | Frame, capabilities: Capabilities, known: Mapping[str, None]) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    uuid = {"uuid": digest(part)} if capabilities.picture_ids else {}
    if uuid.get("uuid") in known:
        return {"type": "image_url", "image_url": None, **uuid}
    data = base64.b64encode(part.png).decode("ascii")
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}, **uuid}


class _Strict(BaseModel):
    # Unknown keys are welcome, servers add their own; known ones have the right type or the answer is not read.
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


def _or_none(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """A figure that is of another type, negative or not finite is unknown, and costs no reply that is good."""
    try:
        return validate(value)
    except ValidationError:
        return None


_Optional = WrapValidator(_or_none)
"""Marks what an answer may lack, and what may be of no use in it."""
_Count = Annotated[Annotated[int, Field(ge=0)] | None, _Optional]


class _LogProb(_Strict):
    token: str
    logprob: float = Field(le=1e-3)  # 0 at most, but for rounding


class _Position(_LogProb):
    top_logprobs: list[_LogProb] = Field(default_factory=list)


class _LogProbs(_Strict):
    content: list[_Position] | None = None


class _Message(_Strict):
    content: str | None = None
    refusal: Annotated[str | None, _Optional] = None
    # What a server with a reasoning parser tells apart, by its present name and by its former one.
    reasoning: Annotated[str | None, _Optional] = None
    reasoning_content: Annotated[str | None, _Optional] = None


class _Choice(_Strict):
    message: _Message
    finish_reason: Annotated[str | None, _Optional] = None
    logprobs: Annotated[_LogProbs | None, _Optional] = None


class _Details(_Strict):
    cached_tokens: _Count = None


class _Written(_Strict):
    reasoning_tokens: _Count = None


class _Usage(_Strict):
    prompt_tokens: _Count = None
    completion_tokens: _Count = None
    prompt_tokens_details: Annotated[_Details | None, _Optional] = None
    completion_tokens_details: Annotated[_Written | None, _Optional] = None


class ServerAnswer(_Strict):
    """The body of an answer.

    What it tells beside the reply may be absent, null or of no use: it is unknown then, and :attr:`unknown` names it.
    """

    model: Annotated[str | None, _Optional] = None
    # Exactly one, as asked for: which of two would count, nobody could say.
    choices: list[_Choice] = Field(min_length=1, max_length=1)
    usage: Annotated[_Usage | None, _Optional] = None
    # Not of the body: a server does not say who it is.
    _server: str = PrivateAttr(default="")

    @property
    def cached_tokens(self) -> int | None:
        """Tokens of the prompt that were found in the prefix cache; None where that is not told."""
        details = self.usage.prompt_tokens_details if self.usage else None
        return None if details is None else details.cached_tokens

    @property
    def unknown(self) -> tuple[str, ...]:
        """Names of figures that an answer usually has and this one does not tell."""
        usage, (choice,) = self.usage or _Usage(), self.choices
        fields = {
            "model": self.model,
            "finish_reason": choice.finish_reason,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
        }
        return tuple(name for name, value in fields.items() if value is None or value == "")

    @property
    def split_thought(self) -> tuple[str, str]:
        """Thought and reply: as the server tells them apart, else by the tags of a thought at the beginning.

        A thought that was cut off has no end, and there is no reply then.
        """
        message = self.choices[0].message
        content = message.content or ""
        if thought := (message.reasoning or message.reasoning_content or "").strip():
            return thought, content
        if opened := _OPENS_THOUGHT.match(content):
            thought, _, content = content[opened.end() :].partition("</think>")
            return thought.strip(), content
        return "", content

    @property
    def thinks(self) -> bool:
        """True if there is a thought; one whose beginning stood in the prompt shows by its end.

        One that the server keeps to itself, as OpenAI's own does, shows by the tokens that it took.
        """
        thought, content = self.split_thought
        written = self.usage.completion_tokens_details if self.usage else None
        return bool(thought) or "</think>" in content or bool(written and written.reasoning_tokens)

    def reply(self, latency_s: float) -> ChatReply:
        """The reply that it holds. Raises Failure if it ended in a way that is not known."""
        (choice,) = self.choices
        # Where it is not told how it ended, what it says has to show that it is whole.
        finish = _FINISHES.get(choice.finish_reason or "stop")
        # An end that is not known may be that of half a reply: it is refused, never taken for a whole one.
        if finish is None:
            raise garbled()
        if choice.message.refusal:
            finish = FinishReason.REFUSAL
        usage = self.usage or _Usage()
        thought, text = self.split_thought
        return ChatReply(
            text=text,
            finish=finish,
            model=self.model or "",
            tokens_in=usage.prompt_tokens or 0,
            tokens_out=usage.completion_tokens or 0,
            tokens_cached=self.cached_tokens or 0,
            latency_s=latency_s,
            server=self._server,
            unknown=self.unknown,
            thought=thought,
        )

    def first_token(self) -> list[_LogProb] | None:
        """Candidates for the first token of the reply; None where there are no log-probabilities."""
        log_probs = self.choices[0].logprobs
        if log_probs is None or not log_probs.content:
            return None
        return log_probs.content[0].top_logprobs or None


_FINISHES = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "repetition": FinishReason.REPETITION,
    "content_filter": FinishReason.REFUSAL,
}


class _Error(_Strict):
    message: str
    code: Annotated[int | None, _Optional] = None


class _ErrorBody(_Strict):
    error: _Error


def read(body: bytes, server: str = "") -> ServerAnswer:
    """The answer in a body, and which server gave it. Raises Failure if it is anything else."""
    try:
        # As some gateways write it, with a mark at its beginning.
        answer = ServerAnswer.model_validate_json(body.removeprefix(codecs.BOM_UTF8))
    except ValidationError:
        raise _error_in(body) or garbled() from None
    answer._server = server
    return answer


def _error_in(body: bytes) -> Failure | None:
    """The failure behind an error that a gateway has sent with the status of a success; None where there is none."""
    try:
        error = _ErrorBody.model_validate_json(body).error
    except ValidationError:
        return None
    # Often the status that the server behind it has given.
    status = error.code if error.code is not None and 400 <= error.code < 600 else 400
    return of_status(status, {}, error.message[:2000])


class _Model(_Strict):
    id: str
    owned_by: Annotated[str | None, _Optional] = None


class _Models(_Strict):
    data: list[_Model]


@dataclass(frozen=True, slots=True)
class ListedModels:
    """Models as a server lists them.

    Attributes:
        names: Their names.
        is_vllm: True if the server is vLLM, as it says of each.
    """

    names: tuple[str, ...]
    is_vllm: bool


def read_models(body: bytes) -> ListedModels:
    """Models as ``/models`` tells them. Raises Failure if it is anything else."""
    try:
        listed = _Models.model_validate_json(body).data
    except ValidationError:
        raise garbled() from None
    return ListedModels(tuple(model.id for model in listed), any(model.owned_by == "vllm" for model in listed))


class _Tokens(_Strict):
    tokens: list[int]


def read_tokens(body: bytes) -> list[int]:
    """Token ids as ``/tokenize`` tells them. Raises Failure if it is anything else."""
    try:
        return _Tokens.model_validate_json(body).tokens
    except ValidationError:
        raise garbled() from None


def masses_of_words(candidates: Sequence[_LogProb], options: Sequence[str]) -> tuple[float, ...]:
    """Probability of each option, written with or without a space before it, as far as it is among the candidates."""
    totals = dict.fromkeys(options, 0.0)
    for candidate in candidates:
        word = candidate.token.strip(" \n▁Ġ")  # spaces, also as vocabularies write them
        if word in totals:
            totals[word] += math.exp(candidate.logprob)
    # Rounding may take a sum a little above 1.
    return tuple(min(totals[option], 1.0) for option in options)


def masses_of_ids(candidates: Sequence[_LogProb], ids: Sequence[int]) -> tuple[float, ...] | None:
    """Probability of each token; None unless each of them is among the candidates."""
    log_probs = {candidate.token: candidate.logprob for candidate in candidates}
    try:
        return tuple(min(math.exp(log_probs[f"{_TOKEN_ID}{token}"]), 1.0) for token in ids)
    except KeyError:
        return None
