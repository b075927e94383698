"""Asks models about a meme without a trial: the common base of comparators and questions."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from typing_extensions import override

from court.deadline import Deadline
from court.errors import BadInput, BadRequest, CourtError, ReplyUnusable, Unavailable
from court.events import Role
from court.meme import Frame
from court.messages import Messages, apart
from court.prompts import Prompt
from court.record import TrialRecord
from court.replies import object_schema
from court.roles import RoleModels, Speaker
from court.trial import Court
from court.untrusted import Fence
from eval.datasets.items import JudgedMeme
from eval.models.cached_model import HitCounter, stored_chairs
from eval.models.prompts import gave_away
from eval.runs.attempt import PICTURE_MISSING, Attempt, Tried, ends_the_run
from eval.runs.prediction import Cost, Outcome, Prediction

T = TypeVar("T")
PROMPTS = "eval.runs.prompts"


@dataclass(frozen=True, slots=True)
class AttemptWithoutTrial(Attempt, ABC):
    """Makes predictions for the memes of one run without a trial or a record."""

    @override
    async def _try_once(
        self, meme: JudgedMeme, known: TrialRecord | None, picture: Callable[[], Awaitable[bytes | None]]
    ) -> Tried:
        try:
            return Tried(await self._predict(meme, picture), False)
        except CourtError as error:
            # The request itself is impossible: not an outcome of this meme, and all others would fail the same way.
            if ends_the_run(error) or isinstance(error, BadRequest):
                raise
            failed = Prediction(meme=meme.id, outcome=Outcome.FAILED, reason=error.reason)
            after = error.retry_after if isinstance(error, Unavailable) else None
            return Tried(failed, isinstance(error, Unavailable), retry_after=after or 0.0)

    @abstractmethod
    async def _predict(self, meme: JudgedMeme, picture: Callable[[], Awaitable[bytes | None]]) -> Prediction:
        """Makes the prediction for a meme. Raises CourtError if there is none."""

    async def shown(self, meme: JudgedMeme, picture: Callable[[], Awaitable[bytes | None]]) -> DecodedMeme:
        """Decodes a meme's picture.

        Raises:
            BadInput: There is no such file.
            BadPicture: The file can't be decoded.
        """
        image = await picture()
        if image is None:
            raise BadInput("The picture is not in the data set's folder.", reason=PICTURE_MISSING)
        decoded = await self.executor.pictures.read(image)
        return DecodedMeme(meme, decoded.frames, decoded.pixels_sha256, hashlib.sha256(image).hexdigest())


@dataclass(frozen=True, slots=True)
class DecodedMeme:
    """A meme with its decoded picture.

    Attributes:
        frames: Frames of its picture; empty without a picture.
        pixels_sha256: Digest of its pixels; empty without a picture.
        bytes_sha256: SHA-256 of its picture's file, in hex; empty without a picture.
    """

    meme: JudgedMeme
    frames: tuple[Frame, ...] = ()
    pixels_sha256: str = ""
    bytes_sha256: str = ""


@dataclass(slots=True)
class MemeCalls:
    """The model calls about one meme, made through the run's call cache."""

    attempt: Attempt
    shown: DecodedMeme
    seed: int
    fence: Fence = field(init=False)
    chain: int = field(default=0, init=False)
    _deadline: Deadline = field(init=False)
    _hits: HitCounter = field(init=False, default_factory=HitCounter)

    def __post_init__(self) -> None:
        # No deadline for all calls together, as in a run's trials; each call has a timeout, so nothing can hang.
        self._deadline = Deadline(None, self.court.settings.call_s)
        assert self.attempt.calls is not None, "models are asked through a store"
        # Always the same mark, so that a resumed run sends identical requests and hits the call cache.
        self.fence = Fence(self.attempt.calls.fence_mark(self.shown.meme.id, self.shown.bytes_sha256))

    @property
    def court(self) -> Court:
        """Court of the run."""
        return self.attempt.executor.court

    def cost(self) -> Cost:
        """Returns the cost so far; no events are recorded here, so the usage meter counts every call as unused."""
        made = self._deadline.tally.unused()
        if made is None:
            return Cost()
        return Cost(
            calls=made.calls,
            stored=min(self._hits.count, made.calls),
            tokens_in=made.tokens_in,
            tokens_out=made.tokens_out,
            tokens_cached=made.tokens_cached,
            chain=self.chain,
        )

    async def ask(
        self,
        prompt: Prompt,
        task: str,
        parts: Sequence[str | Frame],
        read: Callable[[str], T],
        *,
        system: str,
        wanted: dict[str, Any],
    ) -> T:
        """Asks the Judge's model and parses its reply strictly; asks once more if the reply is unusable.

        Args:
            parts: Parts of the user message, including the task itself.
            read: Parser of the reply; raises UnusableReply.
            wanted: Properties of the reply's JSON schema.

        Raises:
            ReplyUnusable: Neither reply was usable, or one revealed its instructions.
            Overrun, Unavailable, ModelRefused: There is no reply.
        """
        messages = messages_of(prompt, task, parts, system=system, wanted=wanted)

        def checked(text: str, _: bool) -> T:
            # The speaker only looks for secrets of a trial's prompts, and this is not one of them.
            if gave_away(prompt, text):
                raise ReplyUnusable(Role.JUDGE, task, "SYSTEM_LEAKED", "it gave its instructions away")
            return read(text)

        return (await self.speaker().say(Role.JUDGE, messages, checked)).value

    def speaker(self, role: Role = Role.JUDGE, *, seed: int | None = None, temperature: float | None = None) -> Speaker:
        """Returns a role's model for this meme.

        Args:
            temperature: Temperature that replaces the role's own.
        """
        model = self._models(self.seed if seed is None else seed).by_role[role]
        return Speaker(
            model=model if temperature is None else replace(model, temperature=temperature),
            fence=self.fence,
            deadline=self._deadline,
            reply_chars=self.court.settings.reply_chars,
            prompts=self.court.prompts,
            batch=True,
        )

    def _models(self, seed: int) -> RoleModels:
        assert self.court.role_models is not None and self.attempt.calls is not None, "models are asked"
        stored = stored_chairs(
            self.court.role_models, self.attempt.calls, server=self.attempt.server, seed=seed, hits=self._hits
        )
        # As in a trial: all calls about a picture go to the replica that has it in its cache.
        return stored.pinned(self.shown.pixels_sha256)


def messages_of(
    prompt: Prompt, task: str, parts: Sequence[str | Frame], *, system: str, wanted: dict[str, Any] | None
) -> Messages[Frame]:
    """Messages of a call; without a JSON schema if ``wanted`` is None. Arguments as in :meth:`MemeCalls.ask`."""
    schema = None if wanted is None else object_schema(wanted)
    return Messages(prompt=prompt, task=task, system=system, parts=apart(parts), schema=schema)
