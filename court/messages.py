"""Messages for each role, built as plain values from exactly what the role may see.

The roles send them; views rebuild them from the record by the same code (:mod:`serving.views.messages`). A picture is
therefore of a generic type: a frame when sending, or its digest if only that is left.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, TypeVar

from court import replies
from court.digests import digest
from court.events import Side
from court.meme import is_language_tag
from court.policy import Policy
from court.precedents import Precedent, Vote
from court.prompts import Fence, Prompt, PromptSet, load
from court.prompts.sets import packaged
from court.question import CourtQuestion
from court.settings import TrialSettings
from court.verdict import Label

P = TypeVar("P")
"""A picture, or a stand-in such as its digest; never a text."""

# From the first single-character subtag on: extensions and private use, which may contain arbitrary words.
_EXTENSIONS = re.compile(r"(?:^|-)[A-Za-z0-9]-.*")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
ORIGINAL_LABELS = frozenset({"not harmful", "somewhat harmful", "very harmful", "misogynous", "not misogynous"})
"""Labels of public data sets (HarMeme, MAMI) that may be shown to the Judge verbatim."""

_ORDERS = (("harmful", "not harmful"), ("not harmful", "harmful"))
"""Options of requests for odds, in both orders."""
_MAX_QUOTED = 2000  # characters of an unusable reply that a repair request quotes


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question and its answer."""

    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class Messages(Generic[P]):
    """One system message and one user message of texts, each followed by an empty line, and pictures."""

    prompt: Prompt
    task: str
    system: str
    parts: tuple[str | P, ...]
    schema: dict[str, Any] | None
    prompts: PromptSet = field(default_factory=packaged)

    def repair(self, fence: Fence, quoted: str, fault: str) -> Messages[P]:
        """Builds the repair request."""
        # It contains the messages, the unusable reply (see :func:`quotable`) and the fault.
        # Appended to what was sent before, so that the server's prefix cache covers it. The reply is fenced as
        # untrusted: a model may have been manipulated into writing instructions.
        correction = (fence.around(quoted), self.prompts.repair.task("repair", fault=fault))
        return dataclasses.replace(self, parts=(*self.parts, *apart(correction)))


@dataclass(frozen=True, slots=True)
class Exhibit(Generic[P]):
    """A precedent as shown to the Judge; ``picture`` is None if the library has none."""

    precedent: Precedent
    picture: P | None


def stance_of(side: Side, before: int, settings: TrialSettings) -> str:
    """Returns the stance in which a side asks, after that many questions before."""
    if settings.stance_at == "summary":
        return "none"
    # By the rounds that every examination has: one that stops early has both halves too.
    switched = settings.stance_at == "switch" and 2 * before < settings.rounds_min
    return str(side.other if switched else side).lower()


def quotable(reply: str) -> str:
    """Returns the part of an unusable reply that the repair request quotes."""
    # Lone surrogates, which a record can't store, become word joiners; fences remove both.
    return "".join("\u2060" if "\ud800" <= character <= "\udfff" else character for character in reply[:_MAX_QUOTED])


def writable(reply: str) -> str:
    """Replaces lone surrogates, which a record can't store, by their equivalent JSON escapes."""
    return _LONE_SURROGATE.sub(lambda lone: f"\\u{ord(lone[0]):04x}", reply)


def describe(pictures: Sequence[P], chars: int, prompts: PromptSet | None = None) -> Messages[P]:
    """Builds the first question to the Proposer."""
    return _to_proposer("describe", pictures, replies.schema_of(replies.Description, chars), prompts)


def answer(
    pictures: Sequence[P], fence: Fence, question: str, chars: int, *, prompts: PromptSet | None = None
) -> Messages[P]:
    """Builds a side's question to the Proposer. Arguments as elsewhere in this module."""
    schema = replies.schema_of(replies.Answer, chars)
    return _to_proposer("answer", pictures, schema, prompts, question=fence.around(question))


def _to_proposer(
    task: str, pictures: Sequence[P], schema: dict[str, Any], prompts: PromptSet | None, **values: str
) -> Messages[P]:
    prompts = prompts or packaged()
    prompt = prompts.proposer
    return Messages(
        prompt=prompt,
        task=task,
        system=prompt.system(),
        parts=(*pictures, *apart([prompt.task(task, **values)])),
        schema=schema,
        prompts=prompts,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvocateBrief:
    """Everything that an Advocate is shown before its first question: no picture."""

    policy: Policy
    fence: Fence
    text: str
    description: str | None
    precedents: tuple[Precedent, ...] = ()
    prompts: PromptSet = field(default_factory=packaged)
    on_claim: bool = False
    language: str = ""

    def ask(self, stance: str, history: Sequence[Exchange], chars: int) -> Messages[Any]:
        """Builds the request for one question; ``stance`` is ``accuser``, ``defender`` or ``none``."""
        return self._messages("ask", stance, history, replies.schema_of(replies.Question, chars))

    def summarise(self, stance: str, history: Sequence[Exchange], chars: int) -> Messages[Any]:
        """Builds the request for a summary and a justification. Arguments as for :meth:`ask`."""
        opening = self.prompts.advocate.opening(stance)
        schema = replies.argument_schema(opening, chars, on_claim=self.on_claim)
        return self._messages("summarise", stance, history, schema, opening=opening)

    def shown(self, history: Sequence[Exchange]) -> list[str]:
        """Returns the texts that a side may rest on and quote."""
        return [self.text, self.description or "", *(exchange.answer for exchange in history)]

    def _messages(
        self, task: str, stance: str, history: Sequence[Exchange], schema: dict[str, Any], **values: str
    ) -> Messages[Any]:
        prompt = self.prompts.advocate
        around = self.fence.around
        # The history only grows and the task comes last, so earlier messages stay a prefix of later ones.
        exchanges = [
            prompt.task(
                "exchange",
                number=str(number),
                # Its own questions are fenced too: a model wrote them after reading the meme.
                question=around(exchange.question),
                answer=around(exchange.answer),
            )
            for number, exchange in enumerate(history, 1)
        ]
        described = prompt.text_alone("description") if self.description is None else around(self.description)
        material = prompt.task("material", text=around(self.text), description=described)
        words = [prompt.task(task, **values)]
        # Before the task, which stays last.
        if self.on_claim and task == "summarise":
            words.insert(0, load("expert").task("name_claim"))
        return Messages(
            prompt=prompt,
            task=task,
            system=prompt.system(policy=self.policy.text, stance=prompt.stance(stance)),
            parts=apart((material, *_language_sentence(self.language), *self._precedents(), *exchanges, *words)),
            schema=schema,
            prompts=self.prompts,
        )

    def _precedents(self) -> list[str]:
        words = load("advocate_precedents")
        return [
            words.task(
                "precedent",
                number=str(number),
                label=_label_in_words(precedent),
                text=self.fence.around(precedent.text),
            )
            for number, precedent in enumerate(self.precedents, 1)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeBrief(Generic[P]):
    """Everything that the Judge is shown; with ``original_labels`` those in :data:`ORIGINAL_LABELS` as they are."""

    pictures: tuple[P, ...]
    policy: Policy
    fence: Fence
    text: str
    description: str | None = ""
    accuser: str = ""
    defender: str = ""
    exhibits: tuple[Exhibit[P], ...] = ()
    vote: Vote | None = None
    guard: str = ""
    opinion: str = ""
    claims: str = ""
    meme_only: bool = False
    prompts: PromptSet = field(default_factory=packaged)
    defender_first: bool = False
    similarity_shown: bool = True
    original_labels: bool = False
    language: str = ""

    def rule(self, chars: int) -> Messages[P]:
        """Builds the request for a ruling."""
        label_last = bool(self.prompts.judge.content.get("label_last"))
        schema = replies.ruling_schema(self.policy, len(self.exhibits), chars, label_last=label_last)
        return self._judge_messages("judge", schema)

    def question(
        self,
        further_question: CourtQuestion,
        chars: int,
        *,
        precedent_labels: Mapping[str, Sequence[str]],
        vote: Mapping[str, float],
    ) -> Messages[P]:
        """Builds the request for a ruling on a further question, from the same material."""
        # System message and parts are those of the ruling on harm, so that the server's prefix cache is used.
        words, ruling = load("question"), self._judge_messages("judge", None)
        further = [
            words.task("precedent", number=str(number), options=", ".join(labels) or "none of the labels")
            # By the numbers by which the Judge knows them.
            for number, exhibit in enumerate(self.exhibits, 1)
            if (labels := precedent_labels.get(exhibit.precedent.id)) is not None
        ]
        if vote:
            shares = "\n".join(f"- {option}: {vote[option]:.2f}" for option in further_question.options)
            further.append(words.task("vote", shares=shares))
        # Options and definitions come from the operator and are not fenced, like the policy.
        options = "\n".join(
            f"- {option}: {further_question.define[option]}" if option in further_question.define else f"- {option}"
            for option in further_question.options
        )
        further.append(words.task("question", text=further_question.text, options=options))
        if further_question.sides is not None:
            (neither,) = set(further_question.options) - set(further_question.weighed)
            further.append(words.task("sides", weighed=", ".join(further_question.weighed), neither=neither))
        else:
            further.append(words.task("several" if further_question.several else "single"))
        return dataclasses.replace(
            ruling,
            prompt=words,
            task="question",
            # Drops the last part, which asks for the ruling on harm.
            parts=(*ruling.parts[:-1], *apart(further)),
            schema=replies.question_schema(further_question, chars),
        )

    def odds(self) -> tuple[Messages[P], Messages[P]]:
        """Builds two requests for one of two letters: with harmful as the first option, and as the second."""
        first, second = (self._judge_messages("odds", None, a=one, b=other) for one, other in _ORDERS)
        return first, second

    @property
    def unheard(self) -> JudgeBrief[P]:
        """The brief before the sides and the witnesses were heard, a prefix of this one."""
        return dataclasses.replace(self, accuser="", defender="", opinion="", claims="")

    def side_odds(self, side: Side) -> tuple[Messages[P], Messages[P]]:
        """Builds two requests for the label that a side's argument supports, in either order of the options."""
        place = "first" if (side is Side.ACCUSER) is not self.defender_first else "second"
        words = load("checks")
        first, second = (
            # Behind the same material as the ruling, so that the server's prefix cache is used.
            dataclasses.replace(odds, parts=(*odds.parts[:-1], *apart([words.task("supports", place=place, a=a, b=b)])))
            for odds, (a, b) in zip(self.odds(), _ORDERS, strict=True)
        )
        return first, second

    def _judge_messages(self, task: str, schema: dict[str, Any] | None, **values: str) -> Messages[P]:
        prompt = self.prompts.judge
        parts = (*self._material(prompt), prompt.task(task, **values))
        return Messages(
            prompt=prompt,
            task=task,
            system=prompt.system(policy=self.policy.text),
            parts=apart(parts),
            schema=schema,
            prompts=self.prompts,
        )

    def _material(self, prompt: Prompt) -> list[str | P]:
        """Returns pictures first, in a fixed order, and the arguments last, for the longest common prefix."""
        case = prompt.task("case") if self.pictures else prompt.text_alone("case")
        parts: list[str | P] = [*self.pictures, case]
        for number, exhibit in enumerate(self.exhibits, 1):
            if exhibit.picture is not None:
                parts += [exhibit.picture, prompt.task("precedent", number=str(number))]
            parts += self._precedent(prompt, number, exhibit.precedent)
        if self.vote is not None:
            tally = prompt.task(
                "tally",
                voters=str(self.vote.voters),
                harmful=str(self.vote.harmful),
                probability=f"{self.vote.probability:.2f}",
            )
            parts.append(tally)
        parts += [prompt.task("text", text=self.fence.around(self.text)), *_language_sentence(self.language)]
        # Everything below is derived from the meme, and the Judge of this ablation sees only the meme itself.
        if self.meme_only:
            return parts
        if self.description is not None:
            parts.append(prompt.task("description", description=self.fence.around(self.description)))
        if self.claims:
            parts.append(load("expert").task("findings", findings=self.fence.around(self.claims)))
        if self.accuser or self.defender:
            accuser, defender = self.fence.around(self.accuser), self.fence.around(self.defender)
            if self.defender_first:
                variant = load("judge_variants")
                parts.append(variant.task("defender_first", accuser=accuser, defender=defender))
            else:
                parts.append(prompt.task("arguments", accuser=accuser, defender=defender))
        if self.opinion:
            opinion = self.fence.around(self.opinion)
            parts.append(load("guard").task("opinion", adapter=self.guard, opinion=opinion))
        return parts

    def _precedent(self, prompt: Prompt, number: int, precedent: Precedent) -> list[str]:
        values = {"number": str(number), "label": self._label_of(precedent), "text": self.fence.around(precedent.text)}
        if self.similarity_shown:
            halves = [
                f"{name} {value:.2f}"
                for name, value in (("text", precedent.text_similarity), ("picture", precedent.picture_similarity))
                if value is not None
            ]
            text = prompt.task("precedent_text", similarity=", ".join(halves) or "unknown", **values)
        else:
            text = load("judge_variants").task("precedent_without_similarity", **values)
        if not precedent.categories:
            return [text]
        # Categories are the data set's words, so they are untrusted.
        categories = self.fence.around(", ".join(precedent.categories))
        return [text, prompt.task("precedent_categories", number=str(number), categories=categories)]

    def _label_of(self, precedent: Precedent) -> str:
        # Not fenced, so only labels of known data sets are shown.
        if self.original_labels and precedent.source_label in ORIGINAL_LABELS:
            return precedent.source_label
        return _label_in_words(precedent)


def _language_sentence(language: str) -> list[str]:
    """Returns the sentence about a text's language; empty if unknown."""
    # It is not fenced, so invalid tags and extension subtags, which may contain arbitrary words, are dropped.
    named = _EXTENSIONS.sub("", language) if is_language_tag(language) else ""
    return [load("language").task("text_language", language=named)] if named else []


def _label_in_words(precedent: Precedent) -> str:
    return "harmful" if precedent.label is Label.HARMFUL else "not harmful"


def apart(parts: Sequence[str | P]) -> tuple[str | P, ...]:
    """Appends an empty line to each text, as servers put nothing between parts."""
    return tuple(f"{part}\n\n" if isinstance(part, str) else part for part in parts)


def in_words(schema: Mapping[str, Any]) -> str:
    """Describes a schema in words, for servers that do not enforce schemas; it contains nothing of a meme."""
    return (
        "\n\nReply with one JSON object and nothing else: no introduction, no code fence, no remark after it. It must "
        f"obey this JSON schema:\n{json.dumps(schema, ensure_ascii=False, separators=(',', ':'))}"
    )


def messages_digest(requests: Sequence[Messages[P]], sha256: Callable[[P], str], *, schema_in_words: bool) -> str:
    """SHA-256 over the one or two requests of a call, in the order in which they were sent, as ``sha256:…``."""
    return digest([_messages(each, sha256, schema_in_words) for each in requests])


def _messages(messages: Messages[P], sha256: Callable[[P], str], schema_in_words: bool) -> list[dict[str, Any]]:
    # Pictures by digest, which is all that a record has of them.
    content = [{"text": part} if isinstance(part, str) else {"picture": sha256(part)} for part in messages.parts]
    if schema_in_words and messages.schema is not None:
        content.append({"text": in_words(messages.schema)})
    return [{"role": "system", "content": messages.system}, {"role": "user", "content": content}]


@lru_cache(maxsize=32)  # a picture is part of many calls; the cache is small because keys hold its bytes
def file_sha256(png: bytes) -> str:
    """SHA-256 of a picture's file, in hex."""
    return hashlib.sha256(png).hexdigest()
