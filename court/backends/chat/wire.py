"""Chat completions on the wire: builds request bodies and parses answers.

The SDK does not validate answers; here they are parsed strictly, from the bytes.
"""

from __future__ import annotations

import base64
import codecs
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
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
from court.digests import digest as digest_of
from court.meme import Frame
from court.messages import file_sha256
from court.messages import in_words as in_words  # offered here too: it is part of what is sent
from court.ports import ChatReply, ChatRequest, FinishReason


class LogProbs(StrEnum):
    """Format of a server's log-probabilities, the weakest first."""

    NONE = "NONE"
    TOP = "TOP"
    """Those of the most likely tokens."""
    CHOSEN = "CHOSEN"
    """Those of requested tokens, by id: vLLM's ``logprob_token_ids``."""


class Thinking(StrEnum):
    """Thoughts of a model before its reply, and the switch that turns them off."""

    NONE = "NONE"
    """Does not think by default."""
    TEMPLATE = "TEMPLATE"
    """Thinks unless disabled in its template: ``chat_template_kwargs`` (vLLM, SGLang, llama.cpp)."""
    EFFORT = "EFFORT"
    """Thinks unless ``reasoning_effort`` is "none"."""
    ALWAYS = "ALWAYS"


_NO_THOUGHTS: Mapping[Thinking, Mapping[str, Any]] = {
    # Model families name the switch differently; templates ignore unknown names.
    Thinking.TEMPLATE: {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}},
    Thinking.EFFORT: {"reasoning_effort": "none"},
}
_THOUGHTS: Mapping[Thinking, Mapping[str, Any]] = {
    Thinking.TEMPLATE: {"chat_template_kwargs": {"enable_thinking": True, "thinking": True}},
    Thinking.EFFORT: {"reasoning_effort": "medium"},
}
THOUGHT_LIMITS = ("thinking_token_budget", "thinking_budget_tokens")
"""Fields that limit the tokens of a thought: vLLM's and llama.cpp's."""
THOUGHT_TOKENS = 4096
REPETITION: Mapping[str, int] = {"min_pattern_size": 16, "max_pattern_size": 64, "min_count": 4}
"""Definition of a loop for vLLM's ``repetition_detection``, in tokens; shorter phrases repeat in patterns of 16 too."""
_PRESENCE_PENALTY = 1.5  # recommended by model cards against endless repetition; the API allows up to 2
_LOOSE_TEMPERATURE = 0.7


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of a model server.

    Attributes:
        pictures: Maximum number of pictures per prompt; a request with more is rejected here instead of dropping some.
        picture_ids: True if the server caches pictures by our id (vLLM's ``uuid``), so that each is sent only once. The
            id must be the SHA-256 of the PNG, as a server uses whatever it has cached under a known id.
        thinking: Thinking before the reply, and the switch that turns it off. If it can't be turned off, the first
            token belongs to a thought, and there are no odds.
        thinks_by: Switch that turns on thinking before the reply; ALWAYS if the model always thinks, NONE if it can't
            or was not probed.
        thought_limit: Field that limits a thought in tokens; empty if there is none, so that thought and reply share
            one limit, their sum.
        priorities: True if the server accepts ``priority``, and serves the lowest first if configured so.
        completion_limit: True if the server requires ``max_completion_tokens`` and rejects ``max_tokens`` (OpenAI's
            own, for reasoning models).
    """

    json_schema: bool = True
    pictures: int = 16
    log_probs: LogProbs = LogProbs.NONE
    picture_ids: bool = False
    cached_tokens: bool = False
    prefix_cache: bool | None = None
    thinking: Thinking = Thinking.NONE
    thinks_by: Thinking = Thinking.NONE
    thought_limit: str = ""
    priorities: bool = False
    ends_loops: bool = False
    penalties: bool = False
    completion_limit: bool = False
    temperatures: bool = True

    def fields(self, request: ChatRequest) -> dict[str, Any]:
        """Returns the request fields that depend on the server's capabilities."""
        switches, switch = (_THOUGHTS, self.thinks_by) if request.thought_tokens else (_NO_THOUGHTS, self.thinking)
        fields = dict(switches.get(switch, {}))
        # Not always max_completion_tokens: all servers but OpenAI's own accept max_tokens, but not all accept the
        # other.
        fields["max_completion_tokens" if self.completion_limit else "max_tokens"] = self.max_tokens(request)
        if self.thought_limit and (tokens := self._thought_tokens(request)):
            fields[self.thought_limit] = tokens
        if self.priorities and request.priority:
            fields["priority"] = request.priority
        if self.ends_loops:
            fields["repetition_detection"] = dict(REPETITION)
        if self.penalties and request.avoid_repetition:
            fields["presence_penalty"] = _PRESENCE_PENALTY
        return fields

    def max_tokens(self, request: ChatRequest) -> int:
        """Returns the token limit of thought and reply together."""
        return request.max_tokens + self._thought_tokens(request)

    def temperature(self, request: ChatRequest) -> float:
        """Returns the temperature, raised against repetition if the server has no penalties."""
        if not self.temperatures:
            return 1.0
        raised = request.avoid_repetition and not self.penalties
        return max(request.temperature, _LOOSE_TEMPERATURE) if raised else request.temperature

    def _thought_tokens(self, request: ChatRequest) -> int:
        # A model that always thinks needs tokens for that, or its reply would be truncated before it begins.
        return request.thought_tokens or (THOUGHT_TOKENS if self.thinking is Thinking.ALWAYS else 0)


def weakest(found: Sequence[Capabilities]) -> Capabilities:
    """Returns the capabilities that all of the servers share."""
    # Both enumerations are ordered: log-probabilities from weakest to best, thinking from least to most restrictive.
    worth, thoughts = list(LogProbs), list(Thinking)
    shared = ("json_schema", "picture_ids", "cached_tokens", "priorities", "ends_loops", "penalties", "temperatures")
    return Capabilities(
        **{name: all(getattr(each, name) for each in found) for name in shared},
        pictures=min(each.pictures for each in found),
        log_probs=min((each.log_probs for each in found), key=worth.index),
        prefix_cache=_least_known([each.prefix_cache for each in found]),
        thinking=max((each.thinking for each in found), key=thoughts.index),
        thinks_by=_common_switch([each.thinks_by for each in found]),
        # Requests to all servers have the same field, so all must support it.
        thought_limit=found[0].thought_limit if len({each.thought_limit for each in found}) == 1 else "",
        completion_limit=any(each.completion_limit for each in found),
    )


def _common_switch(found: Sequence[Thinking]) -> Thinking:
    """Returns the switch that turns on thinking at all servers; models that always think need none."""
    needed = {switch for switch in found if switch is not Thinking.ALWAYS}
    if not needed:
        return Thinking.ALWAYS
    return needed.pop() if len(needed) == 1 else Thinking.NONE


def _least_known(found: Sequence[bool | None]) -> bool | None:
    if False in found:
        return False
    return None if None in found else True


TOP = 20
"""Number of most likely tokens to request: the maximum of the API."""
_TOKEN_ID = "token_id:"  # how vLLM writes a token when asked for ids
_OPENS_THOUGHT = re.compile(r"\s*<think>")


def digest(frame: Frame) -> str:
    """SHA-256 of the PNG, in hex."""
    return file_sha256(frame.png)


def messages(request: ChatRequest, capabilities: Capabilities, known: Mapping[str, None]) -> list[dict[str, Any]]:
    """Builds the messages; pictures whose id is in ``known`` are referenced instead of sent."""
    parts: list[str | Frame] = [*request.parts]
    if request.reply_schema is not None and not capabilities.json_schema:
        parts.append(in_words(request.reply_schema))
    content: str | list[dict[str, Any]]
    if any(isinstance(part, Frame) for part in parts):
        content = [_part(part, capabilities, known) for part in parts]
    else:
        # A single string is accepted by every server, and none inserts anything between the parts.
        content = "".join(part for part in parts if isinstance(part, str))
    message = {"role": "user", "content": content}
    # Templates of guard models have no system message and reject an empty one.
    return [{"role": "system", "content": request.system}, message] if request.system else [message]


def response_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Builds the response format that makes a server enforce a schema."""
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
    # Unknown keys are allowed, as servers add their own; known ones must have the right type.
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


def _or_none(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Turns invalid figures (wrong type, negative, not finite) into None instead of rejecting a good reply."""
    try:
        return validate(value)
    except ValidationError:
        return None


_Optional = WrapValidator(_or_none)
"""Marks optional fields whose invalid values become None."""
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
    # Thought separated by the server's reasoning parser, under its current and its former name.
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
    """Body of an answer.

    Anything beside the reply may be absent, null or invalid; :attr:`unknown` then names it.
    """

    model: Annotated[str | None, _Optional] = None
    # Exactly one, as requested; with two, it would be unclear which one counts.
    choices: list[_Choice] = Field(min_length=1, max_length=1)
    usage: Annotated[_Usage | None, _Optional] = None
    # Not part of the body.
    _server: str = PrivateAttr(default="")

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens found in the prefix cache; None if not reported."""
        details = self.usage.prompt_tokens_details if self.usage else None
        return None if details is None else details.cached_tokens

    @property
    def unknown(self) -> tuple[str, ...]:
        """Names of usual figures that are missing or invalid."""
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
        """Thought and reply, as separated by the server, otherwise by leading thought tags."""
        # A truncated thought has no end tag, and there is no reply then.
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
        """True if there is a thought; one opened in the prompt is detected by its end tag."""
        # A thought that is not returned, as by OpenAI's own server, is detected by its token count.
        thought, content = self.split_thought
        written = self.usage.completion_tokens_details if self.usage else None
        return bool(thought) or "</think>" in content or bool(written and written.reasoning_tokens)

    def reply(self, latency_s: float) -> ChatReply:
        """Returns the reply. Raises Failure for an unknown finish reason."""
        (choice,) = self.choices
        # Without a finish reason, parsing has to show that the reply is complete.
        finish = _FINISHES.get(choice.finish_reason or "stop")
        # An unknown finish reason may mean a partial reply, so it is rejected.
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
        """Returns candidates for the first token of the reply; None without log-probabilities."""
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
    """Parses the body of an answer from a server. Raises Failure if it is invalid."""
    try:
        # Some gateways add a byte order mark.
        answer = ServerAnswer.model_validate_json(body.removeprefix(codecs.BOM_UTF8))
    except ValidationError:
        raise _error_in(body) or garbled() from None
    answer._server = server
    return answer


def _error_in(body: bytes) -> Failure | None:
    """Returns the failure for an error that a gateway sent with a success status; None if there is none."""
    try:
        error = _ErrorBody.model_validate_json(body).error
    except ValidationError:
        return None
    # Often the status of the upstream server.
    status = error.code if error.code is not None and 400 <= error.code < 600 else 400
    return of_status(status, {}, error.message[:2000])


class _Model(_Strict):
    id: str
    owned_by: Annotated[str | None, _Optional] = None
    root: Annotated[str | None, _Optional] = None  # vLLM: name or path of the weights
    meta: Annotated[dict[str, Any] | None, _Optional] = None  # llama.cpp: size, parameters

    @property
    def weights(self) -> str:
        return digest_of([self.root, self.meta]) if self.root or self.meta else ""


class _Models(_Strict):
    data: list[_Model]


@dataclass(frozen=True, slots=True)
class ListedModels:
    """Models as a server lists them."""

    names: tuple[str, ...]
    is_vllm: bool
    weights: Mapping[str, str] = field(default_factory=dict)


def read_models(body: bytes) -> ListedModels:
    """Parses the answer of ``/models``. Raises Failure if it is invalid."""
    try:
        listed = _Models.model_validate_json(body).data
    except ValidationError:
        raise garbled() from None
    is_vllm = any(model.owned_by == "vllm" for model in listed)
    return ListedModels(tuple(model.id for model in listed), is_vllm, {model.id: model.weights for model in listed})


class _Tokens(_Strict):
    tokens: list[int]


def read_tokens(body: bytes) -> list[int]:
    """Parses the answer of ``/tokenize``. Raises Failure if it is invalid."""
    try:
        return _Tokens.model_validate_json(body).tokens
    except ValidationError:
        raise garbled() from None


def masses_of_words(candidates: Sequence[_LogProb], options: Sequence[str]) -> tuple[float, ...]:
    """Returns each option's probability, with or without a leading space; 0 if it is not among the candidates."""
    totals = dict.fromkeys(options, 0.0)
    for candidate in candidates:
        word = candidate.token.strip(" \n▁Ġ")  # spaces, including their forms in vocabularies
        if word in totals:
            totals[word] += math.exp(candidate.logprob)
    # Rounding may push a sum slightly above 1.
    return tuple(min(totals[option], 1.0) for option in options)


def masses_of_ids(candidates: Sequence[_LogProb], ids: Sequence[int]) -> tuple[float, ...] | None:
    """Returns each token's probability; None unless all are among the candidates."""
    log_probs = {candidate.token: candidate.logprob for candidate in candidates}
    try:
        return tuple(min(math.exp(log_probs[f"{_TOKEN_ID}{token}"]), 1.0) for token in ids)
    except KeyError:
        return None
