"""Optional features of model servers, and the request fields that use them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from court.ports import ChatRequest


class LogProbs(StrEnum):
    """Format of a server's log-probabilities, the weakest first."""

    NONE = "NONE"
    """None."""
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
    """Always thinks."""


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
"""Default limit of a thought, in tokens."""
REPETITION: Mapping[str, int] = {"min_pattern_size": 16, "max_pattern_size": 64, "min_count": 4}
"""Definition of a loop for vLLM's ``repetition_detection``, in tokens; shorter phrases repeat in patterns of 16 too."""
_PRESENCE_PENALTY = 1.5  # recommended by model cards against endless repetition; the API allows up to 2
_LOOSE_TEMPERATURE = 0.7


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of a model server.

    Attributes:
        json_schema: True if the server enforces a JSON schema; otherwise the schema is described at the end of the
            message.
        pictures: Maximum number of pictures per prompt; a request with more is rejected here instead of dropping some.
        picture_ids: True if the server caches pictures by our id (vLLM's ``uuid``), so that each is sent only once. The
            id must be the SHA-256 of the PNG, as a server uses whatever it has cached under a known id.
        cached_tokens: True if the server reports prompt tokens found in its prefix cache; otherwise 0 is recorded.
        thinking: Thinking before the reply, and the switch that turns it off. If it can't be turned off, the first
            token belongs to a thought, and there are no odds.
        thinks_by: Switch that turns on thinking before the reply; ALWAYS if the model always thinks, NONE if it can't
            or was not probed.
        thought_limit: Field that limits a thought in tokens; empty if there is none, so that thought and reply share
            one limit, their sum.
        priorities: True if the server accepts ``priority``, and serves the lowest first if configured so.
        ends_loops: True if the server stops a reply that repeats itself (vLLM's ``repetition_detection``).
        completion_limit: True if the server requires ``max_completion_tokens`` and rejects ``max_tokens`` (OpenAI's
            own, for reasoning models).
        temperatures: True if the server accepts any temperature; otherwise only 1.
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
    return Capabilities(
        json_schema=all(each.json_schema for each in found),
        pictures=min(each.pictures for each in found),
        log_probs=min((each.log_probs for each in found), key=worth.index),
        picture_ids=all(each.picture_ids for each in found),
        cached_tokens=all(each.cached_tokens for each in found),
        prefix_cache=_least_known([each.prefix_cache for each in found]),
        thinking=max((each.thinking for each in found), key=thoughts.index),
        thinks_by=_common_switch([each.thinks_by for each in found]),
        # Requests to all servers have the same field, so all must support it.
        thought_limit=found[0].thought_limit if len({each.thought_limit for each in found}) == 1 else "",
        priorities=all(each.priorities for each in found),
        ends_loops=all(each.ends_loops for each in found),
        penalties=all(each.penalties for each in found),
        completion_limit=any(each.completion_limit for each in found),
        temperatures=all(each.temperatures for each in found),
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
