"""A guard model as an additional witness, asked once in the format it was trained on.

Guards are content classifiers, each with its own policy and answer format. The opinion is recorded and shown to the
Judge as that of one witness; it decides no label. A failing guard does not fail the trial: the missing opinion is
recorded and is a reason for review.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, TypeVar

from pydantic import Field

from court import prompts, replies
from court.errors import CourtError
from court.events import GuardHeard, Role
from court.meme import Frame
from court.messages import Messages, apart, quotable
from court.policy import Policy
from court.prompts import Fence, neutralise
from court.recorder import EventDraft
from court.replies import TextBounds, UnusableReply
from court.roles import GuardModel, Speaker

P = TypeVar("P")
"""A picture, or a stand-in such as its digest; never a text."""

_MOST_NAMED, _MOST_NAME, _MOST_REASON = 16, 100, 600
"""Categories that are recorded, their characters, and those of a reason."""
_SHARE = 0.5
"""Share of the time left that a guard may take; the Judge needs the rest."""


class GuardAdapter(StrEnum):
    """Family of guard models, by how they are asked and how they answer."""

    LLAMA_GUARD_4 = "llama-guard-4"
    NEMOTRON = "nemotron-content-safety"
    GUARDREASONER = "guardreasoner-omni"
    GPT_OSS_SAFEGUARD = "gpt-oss-safeguard"


@dataclass(frozen=True, slots=True)
class GuardOpinion:
    """Opinion of a guard."""

    harmful: bool
    categories: tuple[str, ...] = ()
    reason: str = ""


_Name = Annotated[str, TextBounds(least=0, most=_MOST_NAME), Field(max_length=_MOST_NAME)]


class _Classified(replies.Reply):
    violates: bool
    clauses: list[_Name] = Field(max_length=_MOST_NAMED)
    reason: Annotated[str, TextBounds(least=0, most=_MOST_REASON)] = Field(max_length=_MOST_REASON)


_CLASSIFIED = replies.schema_of(_Classified, 0)


def _after_thought(reply: str) -> str:
    # A thought may mention both answers; only the text after it counts.
    return reply.rpartition("</think>")[2].strip()


def _llama_guard(reply: str, _: Policy) -> GuardOpinion:
    # The first line alone decides; further ones only name hazards.
    first, *others = [line.strip() for line in _after_thought(reply).splitlines() if line.strip()] or [""]
    if first.lower() not in ("safe", "unsafe"):
        raise UnusableReply("REPLY_MALFORMED", "its first line is neither safe nor unsafe")
    codes = [code for line in others for code in re.findall(r"\bS\d{1,2}\b", line)]
    # A "safe" with hazards is ambiguous, while an "unsafe" without hazards is clear.
    if first.lower() == "safe" and (codes or any(line.lower() == "unsafe" for line in others)):
        raise UnusableReply("REPLY_MALFORMED", "it says safe, and then what makes it unsafe")
    named = tuple(f"{_HAZARDS[code]} ({code})" if code in _HAZARDS else code for code in dict.fromkeys(codes))
    return GuardOpinion(first.lower() == "unsafe", named)


def _nemotron(reply: str, _: Policy) -> GuardOpinion:
    """Parses lines of name and value, or a JSON object with the same names, as older models of the family write it."""
    answer = _after_thought(reply)
    # Only the user's message is rated; there is no response here.
    safety = re.findall(r"User Safety\"?\s*:\s*\"?(safe|unsafe)\b", answer, re.IGNORECASE)
    if len({word.lower() for word in safety}) != 1:
        raise UnusableReply("REPLY_MALFORMED", "it does not say whether what the user sent is safe, or says both")
    listed = re.search(r"Safety Categories\"?\s*:\s*\"?([^\"\n}]*)", answer, re.IGNORECASE)
    named = (name.strip() for name in listed[1].split(",")) if listed else ()
    return GuardOpinion(safety[0].lower() == "unsafe", tuple(name for name in named if name))


def _guardreasoner(reply: str, _: Policy) -> GuardOpinion:
    matches = re.findall(r"\brequest\s*:\s*(harmful|unharmful)\b", _after_thought(reply), re.IGNORECASE)
    if not matches:
        raise UnusableReply("REPLY_MALFORMED", "it does not say whether the request is harmful")
    # The last match: models of this family reason before they decide, and may mention both.
    return GuardOpinion(matches[-1].lower() == "harmful")


def _gpt_oss_safeguard(reply: str, policy: Policy) -> GuardOpinion:
    read = replies.parse(_Classified, reply)
    # Unknown clause numbers are kept as they are: they are only an opinion and decide nothing.
    known = {clause.number: clause.category for clause in policy.clauses}
    named = tuple(f"{known[number]} ({number})" if number in known else number for number in read.clauses)
    return GuardOpinion(read.violates, named, read.reason.strip())


_HAZARDS: Mapping[str, str] = dict(
    zip(
        (f"S{number}" for number in range(1, 15)),
        (
            *("violent crimes", "non-violent crimes", "sex-related crimes", "child sexual exploitation", "defamation"),
            *("specialised advice", "privacy", "intellectual property", "indiscriminate weapons", "hate"),
            *("suicide and self-harm", "sexual content", "elections", "code interpreter abuse"),
        ),
        strict=True,
    )
)
"""Hazards of the MLCommons taxonomy, by the codes that Llama Guard 4 gives them."""

_PARSERS: Mapping[GuardAdapter, Callable[[str, Policy], GuardOpinion]] = {
    GuardAdapter.LLAMA_GUARD_4: _llama_guard,
    GuardAdapter.NEMOTRON: _nemotron,
    GuardAdapter.GUARDREASONER: _guardreasoner,
    GuardAdapter.GPT_OSS_SAFEGUARD: _gpt_oss_safeguard,
}


def parse_opinion(adapter: GuardAdapter, reply: str, policy: Policy) -> GuardOpinion:
    """Parses a guard's answer strictly, in its family's format. Raises UnusableReply if it is invalid."""
    if not reply.strip():
        raise UnusableReply("REPLY_EMPTY", "it was empty")
    found = _PARSERS[adapter](reply, policy)
    # Truncated and not rejected: the opinion is clear, however many categories it names.
    return GuardOpinion(
        found.harmful, tuple(name[:_MOST_NAME] for name in found.categories[:_MOST_NAMED]), found.reason
    )


def pictures_for(adapter: GuardAdapter, pictures: Sequence[P]) -> tuple[P, ...]:
    """Returns the pictures that a guard of this family accepts: all, the first, or none."""
    if adapter is GuardAdapter.GPT_OSS_SAFEGUARD:
        return ()
    return tuple(pictures[:1] if adapter is GuardAdapter.NEMOTRON else pictures)


def guard_messages(
    adapter: GuardAdapter, pictures: Sequence[P], *, policy: Policy, fence: Fence, text: str, description: str | None
) -> Messages[P]:
    """Builds the request to a guard."""
    # Families with a format of their own get no fence around the text, as it would be part of what they classify;
    # control tokens are broken up for all.
    prompt = prompts.load("guard")
    shown = pictures_for(adapter, pictures)
    if adapter is GuardAdapter.GPT_OSS_SAFEGUARD:
        described = prompts.load("text_alone").task("description") if description is None else fence.around(description)
        task = prompt.task("classify", text=fence.around(text), description=described)
        system = prompt.system(policy=policy.text)
        return Messages(prompt=prompt, task="classify", system=system, parts=apart([task]), schema=_CLASSIFIED)
    # Never empty, as a guard would judge an empty message instead of a meme without text.
    words = neutralise(text).strip() or prompt.task("no_text")
    name = "request" if adapter is GuardAdapter.GUARDREASONER else "post"
    parts: list[str | P] = [*shown, prompt.task(name, text=words)]
    # No system message: the templates of these guards have none, and wire.py omits an empty one.
    return Messages(prompt=prompt, task=name, system="", parts=apart(parts), schema=None)


def opinion_words(event: GuardHeard) -> str:
    """Returns a guard's opinion as shown to the Judge; empty if it gave none."""
    if event.harmful is None:
        return ""
    words = "harmful" if event.harmful else "not harmful"
    if event.categories:
        words += f"\n{', '.join(event.categories)}"
    return f"{words}\n{event.reason}" if event.reason else words


@dataclass(frozen=True, slots=True)
class GuardWitness:
    """A guard within one trial."""

    speaker: Speaker
    guard: GuardModel
    frames: tuple[Frame, ...]
    policy: Policy

    @property
    def _adapter(self) -> GuardAdapter:
        return GuardAdapter(self.guard.adapter)

    async def opinion(self, text: str, description: str | None) -> EventDraft:
        """Asks for the guard's opinion once, and drafts the event of the opinion or the failure."""
        messages = guard_messages(
            self._adapter, self.frames, policy=self.policy, fence=self.speaker.fence, text=text, description=description
        )
        event = {"adapter": self._adapter, "pictures": len(pictures_for(self._adapter, self.frames))}
        try:
            answer = await self.speaker.say_once(Role.GUARD, messages, self._read, share=_SHARE)
        except CourtError as error:
            # Busy, gone, too slow, refusing or unparsable: the trial continues without an opinion and records that.
            return EventDraft(GuardHeard, {**event, "failure": error.reason})
        opinion, reply = answer.value
        found = {"harmful": opinion.harmful, "categories": opinion.categories, "reason": opinion.reason}
        return EventDraft(GuardHeard, {**event, **found, "reply": reply, "call": answer.call})

    def _read(self, reply: str) -> tuple[GuardOpinion, str]:
        # The call records the raw reply, with any thought before it.
        return parse_opinion(self._adapter, reply, self.policy), quotable(_after_thought(reply))
