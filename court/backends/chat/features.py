"""Features of model servers beyond answering, and the fields by which a request uses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from court.ports import ChatRequest


class LogProbs(StrEnum):
    """Format of a server's log-probabilities, the weakest first."""

    NONE = "NONE"
    """Not at all."""
    TOP = "TOP"
    """Of the most likely ones."""
    CHOSEN = "CHOSEN"
    """Of the ones that we ask for, by id: vLLM's ``logprob_token_ids``."""


class Thinking(StrEnum):
    """Thoughts of a model before its reply, and the switch that turns them off."""

    NONE = "NONE"
    """It does not, by itself."""
    TEMPLATE = "TEMPLATE"
    """It does, unless its template is told not to: ``chat_template_kwargs`` (vLLM, SGLang, llama.cpp)."""
    EFFORT = "EFFORT"
    """It does, unless ``reasoning_effort`` says "none"."""
    ALWAYS = "ALWAYS"
    """It does, whatever it is told."""


_NO_THOUGHTS: Mapping[Thinking, Mapping[str, Any]] = {
    # Families name the switch differently; templates pass over what they don't know.
    Thinking.TEMPLATE: {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}},
    Thinking.EFFORT: {"reasoning_effort": "none"},
}
_THOUGHTS: Mapping[Thinking, Mapping[str, Any]] = {
    Thinking.TEMPLATE: {"chat_template_kwargs": {"enable_thinking": True, "thinking": True}},
    Thinking.EFFORT: {"reasoning_effort": "medium"},
}
THOUGHT_LIMITS = ("thinking_token_budget", "thinking_budget_tokens")
"""Fields by which servers limit a thought in tokens: vLLM's, and llama.cpp's."""
THOUGHT_TOKENS = 4096
"""Tokens of a thought where nobody says how many."""
REPETITION: Mapping[str, int] = {"min_pattern_size": 16, "max_pattern_size": 64, "min_count": 4}
"""Tokens that make a loop, for vLLM's ``repetition_detection``: a shorter phrase repeats in patterns of 16 too."""
_PRESENCE_PENALTY = 1.5  # what model cards recommend against endless repetition; the API allows 2
_LOOSE_TEMPERATURE = 0.7


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of a model server beyond answering.

    Attributes:
        json_schema: True if the server enforces a JSON schema; otherwise the schema is described in words, after
            everything else.
        pictures: In one prompt, at most; a request with more is refused here, and never sent without some of them.
        log_probs: Format of the log-probabilities.
        picture_ids: True if the server caches pictures by an id of ours (vLLM's ``uuid``), so that each has to be sent
            only once. The id is the SHA-256 of the PNG and nothing else: a server answers for a known id whatever it
            has under it.
        cached_tokens: True if the server reports prompt tokens found in its prefix cache; otherwise 0 is recorded.
        prefix_cache: True if the server finds the beginning of a prompt again that it has just read; None where it does
            not tell.
        thinking: Thoughts of the model before its reply. They are turned off where that can be done; where it can't,
            the first token is that of a thought, and there are no odds.
        thinks_by: Switch that has the model think before its reply; ALWAYS where it does by itself, NONE where it can't
            be made to, or where nobody wanted to know.
        thought_limit: Field by which the server limits a thought in tokens; empty where it has none: then thought and
            reply share one limit, which is the sum.
        priorities: True if the server takes a ``priority``, and works on the lowest first where it was started to.
        ends_loops: True if the server ends a reply that repeats itself (vLLM's ``repetition_detection``).
        penalties: True if the server takes a ``presence_penalty``.
        completion_limit: True if the server wants the limit of a reply as ``max_completion_tokens``, and refuses
            ``max_tokens`` (OpenAI's own, for models that think).
        temperatures: True if the server takes any temperature; otherwise only 1.
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
        """Returns the fields of a request that depend on the abilities of the server."""
        switches, switch = (_THOUGHTS, self.thinks_by) if request.thought_tokens else (_NO_THOUGHTS, self.thinking)
        fields = dict(switches.get(switch, {}))
        # Not max_completion_tokens everywhere: all servers but OpenAI's own know the former name, not all the latter.
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
        """Returns the tokens of thought and reply together."""
        return request.max_tokens + self._thought_tokens(request)

    def temperature(self, request: ChatRequest) -> float:
        """Returns the temperature; a higher one against repetition where the server has nothing better."""
        if not self.temperatures:
            return 1.0
        raised = request.avoid_repetition and not self.penalties
        return max(request.temperature, _LOOSE_TEMPERATURE) if raised else request.temperature

    def _thought_tokens(self, request: ChatRequest) -> int:
        # A model that always thinks needs room for it, or its reply would be cut before it begins.
        return request.thought_tokens or (THOUGHT_TOKENS if self.thinking is Thinking.ALWAYS else 0)


def weakest(found: Sequence[Capabilities]) -> Capabilities:
    """Returns the capabilities that all of the servers share."""
    # Both are declared in order: log-probabilities from the weakest on, thoughts from the least trouble to the most.
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
        # Requests to all servers carry the same field, so that all of them have to know it.
        thought_limit=found[0].thought_limit if len({each.thought_limit for each in found}) == 1 else "",
        priorities=all(each.priorities for each in found),
        ends_loops=all(each.ends_loops for each in found),
        penalties=all(each.penalties for each in found),
        completion_limit=any(each.completion_limit for each in found),
        temperatures=all(each.temperatures for each in found),
    )


def _common_switch(found: Sequence[Thinking]) -> Thinking:
    """The switch that has the model think at all of the servers; one that always does needs none."""
    needed = {switch for switch in found if switch is not Thinking.ALWAYS}
    if not needed:
        return Thinking.ALWAYS
    return needed.pop() if len(needed) == 1 else Thinking.NONE


def _least_known(found: Sequence[bool | None]) -> bool | None:
    if False in found:
        return False
    return None if None in found else True
