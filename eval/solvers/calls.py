"""Models and court of a run, as solvers use them: behind the call cache, with the same fences in each session."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from court.backends.pictures.refusals import bad_picture
from court.deadline import Deadline
from court.errors import BadInput, BadRequest, CourtError, Unavailable
from court.events import Role
from court.meme import Frame
from court.prompts import Fence
from court.record import TrialRecord
from court.roles import RoleModels, Speaker
from court.trial import Court
from eval.datasets.items import Cost, JudgedMeme, Outcome, Prediction
from eval.models.call_cache import CallCache, CallsError, HitCounter, stored_models
from eval.models.metered import Agent
from eval.session.engine import Tried
from eval.solvers.progressive import fetching
from serving.docket.errors import DocketError
from serving.judging.executor import TrialExecutor

T = TypeVar("T")
PROMPTS = "eval.solvers.prompts"
PICTURE_MISSING = "PICTURE_MISSING"
"""Reason of a failure: the picture is not in the data set's folder."""


@dataclass(frozen=True, slots=True)
class MemeItem:
    """A meme to solve."""

    meme: JudgedMeme
    picture: Callable[[], Awaitable[bytes | None]]
    """Reads its picture's file on demand; returns None if there is no such file."""

    async def image(self) -> bytes:
        """Reads its picture's file. Raises BadInput if it is missing or empty."""
        image = await self.picture()
        # Only this meme fails; --allow-missing lets a run start with such memes.
        if image is None:
            raise BadInput("The picture is not in the data set's folder.", reason=PICTURE_MISSING)
        if not image:
            raise bad_picture("PICTURE_EMPTY", {})  # otherwise the text would be judged alone
        return image


class Solver(Protocol):
    """A way to answer for the memes of a run."""

    async def solve(self, item: MemeItem, record: TrialRecord | None) -> Tried[Prediction, TrialRecord]:
        """Attempts a meme once.

        Raises CourtError: The run's own files are at fault, or its request is impossible for every meme.
        """

    def rebuilt(self, meme: JudgedMeme, record: TrialRecord) -> Prediction | None:
        """Builds the prediction from a record; None if its trial is to be resumed."""


@dataclass(frozen=True, slots=True)
class DecodedMeme:
    """A meme with its decoded picture."""

    meme: JudgedMeme
    frames: tuple[Frame, ...] = ()
    """Frames of its picture; empty without a picture."""
    pixels_sha256: str = ""
    bytes_sha256: str = ""


@dataclass(frozen=True, slots=True)
class StoredCourt:
    """The court of a run, whose models are called through the call cache."""

    executor: TrialExecutor
    calls: CallCache | None
    """Call cache; None if no model is called."""
    server: str = ""
    """Name of the model servers in the call cache; their addresses if empty."""
    seed: int = 0
    fetches: bool = False
    """True if questions fetch precedents (:mod:`eval.solvers.progressive`)."""

    def fence_mark(self, meme: str, bytes_sha256: str) -> str:
        """Returns the fence mark of a meme: always the same, so that a resumed run sends identical requests."""
        assert self.calls is not None, "models are called through a store"
        # Keyed by the file rather than its pixels: as stable, and known before decoding.
        return self.calls.fence_mark(meme, bytes_sha256)

    def role_models(self, hits: HitCounter, seed: int | None = None) -> RoleModels:
        """Returns the models of the roles behind the call cache."""
        models = self.executor.court.role_models
        assert models is not None and self.calls is not None, "models are called"
        seed = self.seed if seed is None else seed
        return stored_models(models, self.calls, server=self.server, seed=seed, hits=hits)

    def of(self, meme: JudgedMeme, bytes_sha256: str, hits: HitCounter) -> TrialExecutor:
        """Returns the court for the trial of one meme."""
        court = self.executor.court
        # Without models there are no requests to repeat.
        if self.calls is None or court.role_models is None:
            return self.executor
        mark = self.fence_mark(meme.id, bytes_sha256)
        models = self.role_models(hits)
        if self.fetches:
            models = replace(models, proposer=fetching(models.proposer, court.finder, meme.text))
        return replace(self.executor, court=replace(court, role_models=models, fence_mark=mark))

    async def decoded(self, item: MemeItem) -> DecodedMeme:
        """Decodes a meme's picture. Raises BadInput if it is missing, or can't be decoded."""
        image = await item.image()
        decoded = await self.executor.pictures.read(image)
        return DecodedMeme(item.meme, decoded.frames, decoded.pixels_sha256, hashlib.sha256(image).hexdigest())


@dataclass(slots=True)
class MemeCalls:
    """The model calls about one meme, with their cost."""

    stored: StoredCourt
    shown: DecodedMeme
    fence: Fence = field(init=False)
    _deadline: Deadline = field(init=False)
    _hits: HitCounter = field(init=False, default_factory=HitCounter)

    def __post_init__(self) -> None:
        # No deadline for all calls together, as in a run's trials; each call has a timeout, so nothing can hang.
        self._deadline = Deadline(None, self.court.call_s)
        self.fence = Fence(self.stored.fence_mark(self.shown.meme.id, self.shown.bytes_sha256))

    @property
    def court(self) -> Court:
        """Court of the run."""
        return self.stored.executor.court

    def cost(self) -> Cost:
        """Returns the cost so far; no events are recorded here, so the usage meter counts every call as unused."""
        made = self._deadline.usage.unused()
        if made is None:
            return Cost()
        tokens = {name: getattr(made, name) for name in ("tokens_in", "tokens_out", "tokens_cached")}
        return Cost(calls=made.calls, stored=min(self._hits.count, made.calls), **tokens)

    async def ask(self, agent: Agent[T], parts: Sequence[str | Frame]) -> T:
        """Asks the Judge's model. Raises as :meth:`eval.models.metered.Agent.ask`."""
        return (await agent.ask(self.speaker(), parts)).value

    def speaker(self, role: Role = Role.JUDGE, *, seed: int | None = None, temperature: float | None = None) -> Speaker:
        """Returns a role's model for this meme."""
        models = self.stored.role_models(self._hits, seed)
        # As in a trial: all calls about a picture go to the replica that has it in its cache.
        model = models.pinned(self.shown.pixels_sha256).by_role[role]
        return Speaker(
            model=model if temperature is None else replace(model, temperature=temperature),
            fence=self.fence,
            deadline=self._deadline,
            reply_chars=self.court.settings.reply_chars,
            prompts=self.court.prompts,
            batch=True,
        )


class AnsweringSolver(ABC):
    """A :class:`Solver` whose answers leave no record: each attempt is a new one."""

    async def solve(self, item: MemeItem, record: TrialRecord | None) -> Tried[Prediction, TrialRecord]:
        """Answers for a meme; see :class:`Solver`."""
        try:
            return Tried(await self.predict(item))
        except CourtError as error:
            return failed(item.meme, error)

    def rebuilt(self, meme: JudgedMeme, record: TrialRecord) -> Prediction | None:
        """Returns None: there is no record to build a prediction from."""
        return None

    @abstractmethod
    async def predict(self, item: MemeItem) -> Prediction:
        """Returns the answer for a meme. Raises CourtError: There is none."""


def failed(meme: JudgedMeme, error: CourtError, record: TrialRecord | None = None) -> Tried[Prediction, TrialRecord]:
    """Turns the failure of one meme into its outcome; raises the error again if it concerns the whole run."""
    # An impossible request is not an outcome of this meme: all others would fail the same way.
    if ends_the_run(error) or isinstance(error, BadRequest):
        raise error
    passing = isinstance(error, Unavailable)
    after = error.retry_after if isinstance(error, Unavailable) else None
    trial = record.trial_id if record is not None else ""
    prediction = Prediction(meme=meme.id, outcome=Outcome.FAILED, reason=error.reason, trial=trial)
    return Tried(prediction, passing, error.reason, state=record, retry_after=after or 0.0)


def ends_the_run(cause: CourtError) -> bool:
    """True if the run's own files are at fault, not the trial."""
    return isinstance(cause, CallsError | DocketError) or cause.reason.startswith("DOCKET_")
