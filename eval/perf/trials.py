"""Whole trials against a fake server of known speed, and the minimum time that they need.

The court is the real one and calls the model through the real client; the server is a separate process. Provided, and
not measured, are the meme's text, a picture that is never decoded, and a finder of precedents with fixed results.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from court.backends.chat.client import ChatCompletions
from court.backends.chat.wire import Capabilities, LogProbs
from court.backends.http import Load, http_client
from court.events import (
    AnswerGiven,
    AnyEvent,
    ModelCall,
    Procedure,
    QuestionAsked,
    Side,
    Summarised,
)
from court.meme import Frame, Meme, Picture, PictureFormat
from court.ports import Reading, ReplicatedModel
from court.precedents import (
    Findings,
    LibraryIdentity,
    MinSimilarity,
    Precedent,
    Relation,
    Search,
    TallyEntry,
    VoteSettings,
)
from court.record import TrialRecord
from court.roles import RoleModel, RoleModels
from court.settings import TrialSettings
from court.trial import Court, TrialCase
from court.verdict import Label
from eval.standin.replies import meme_text

CAN = Capabilities(picture_ids=True, log_probs=LogProbs.CHOSEN, cached_tokens=True)
"""Capabilities of the fake server, as a probe would find them."""
PICTURE_BYTES = 400_000
"""Of a meme's picture: what 1,280 pixels of a photograph with words on it come to as PNG, at the lower end."""
_WAIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Speed:
    """Speed of a fake server."""

    call_s: float = 0.0
    prompt_token_s: float = 0.0
    output_token_s: float = 0.0

    def of(self, call: ModelCall, calls: int = 1) -> float:
        """Returns the seconds that the server works on a call, from its settings and its token counts."""
        if call.fault:
            raise ValueError("a call that was made twice: the trial is not the one that was meant")
        read = call.tokens_in - call.tokens_cached
        return calls * self.call_s + read * self.prompt_token_s + call.tokens_out * self.output_token_s

    @property
    def flags(self) -> list[str]:
        """Returns the speed as command-line options of a fake server."""
        return [
            *("--call-s", str(self.call_s), "--prompt-token-s", str(self.prompt_token_s)),
            *("--output-token-s", str(self.output_token_s)),
        ]


@dataclass(frozen=True, slots=True)
class Examined:
    """Calls of the rounds of one side that count, in seconds; each list from the first round to the last."""

    questions: tuple[float, ...]
    answers: tuple[float, ...]
    summaries: tuple[float, ...]

    @property
    def rounds(self) -> int:
        """Number of rounds that count."""
        return len(self.questions)


@dataclass(frozen=True, slots=True)
class Times:
    """The calls that a trial needs, in seconds of server time; without calls that its stop made superfluous."""

    describe: float
    sides: tuple[Examined, ...]
    """q, a and s of every round."""
    judge: float
    score: float = 0.0
    """Seconds of the one-token calls for the score, together."""

    @property
    def floor(self) -> float:
        """``D + R (q + a) + s + J``, by the slower side: the longest chain of calls that depend on one another."""
        # Of the summaries only the last is on the chain: the others are written during the next round.
        chains = (sum(side.questions) + sum(side.answers) + side.summaries[-1] for side in self.sides)
        return self.describe + max(chains) + self.judge

    @property
    def naive(self) -> float:
        """``D + 2 R (q + a + s) + J``: all calls of Algorithm 1, one after the other."""
        chains = (sum(side.questions) + sum(side.answers) + sum(side.summaries) for side in self.sides)
        return self.describe + sum(chains) + self.judge

    @property
    def needed(self) -> float:
        """All server time that the trial needs, including the score."""
        # A trial needs the same calls in either order; only their timing differs.
        return self.naive + self.score


def times(record: TrialRecord, speed: Speed) -> Times:
    """Returns the calls of a trial that ended in a verdict."""
    sides = []
    for side in Side:
        rounds = record.rested[side].rounds
        recorded = (record.all(QuestionAsked), record.all(AnswerGiven), record.all(Summarised))
        sides.append(Examined(*(_rounds(events, side, rounds, speed) for events in recorded)))
    described, verdict = record.described, record.verdict_event
    assert described is not None and verdict is not None
    return Times(
        describe=_seconds(described.call, speed),
        sides=tuple(sides),
        judge=_seconds(verdict.call, speed),
        # One event for several calls: one for each order of the options.
        score=speed.of(verdict.odds.call, len(verdict.odds.harmful)) if verdict.odds else 0.0,
    )


def _rounds(
    events: Iterable[QuestionAsked | AnswerGiven | Summarised], side: Side, rounds: int, speed: Speed
) -> tuple[float, ...]:
    calls = {event.round: event.call for event in events if event.side is side}
    # Without later rounds, which the stop made superfluous.
    return tuple(_seconds(calls[number], speed) for number in range(1, rounds + 1))


def _seconds(call: ModelCall | None, speed: Speed) -> float:
    assert call is not None, "a full trial has a call at each of these events"
    return speed.of(call)


@asynccontextmanager
async def bar(address: str, *, concurrency: int = 1024, finder: KnownFinder | None = None) -> AsyncIterator[Court]:
    """Yields a court that uses a server."""
    load = Load(concurrency)
    async with http_client() as http:
        model = ChatCompletions(base_url=f"{address}/v1", model="stand-in", capabilities=CAN, http=http, load=load)
        yield court_of(model, TrialSettings(), finder=finder)


def court_of(
    model: ReplicatedModel,
    settings: TrialSettings,
    *,
    finder: KnownFinder | None = None,
    temperature: float = 0.0,
) -> Court:
    """A court in which one model has all roles."""
    role_model = RoleModel(model, temperature, servers=model)
    return Court(
        finder=finder or KnownFinder(),
        text_reader=_NoReader(),
        software="benchmark",
        settings=settings,
        role_models=RoleModels(role_model, role_model, role_model, role_model),
    )


def case(name: str, rounds: int) -> TrialCase:
    """Returns a new meme whose trial takes that many rounds."""
    # Never decoded here: only its size in the request matters.
    png = random.Random(name).randbytes(PICTURE_BYTES)
    digest = random.Random(f"pixels of {name}").randbytes(32).hex()
    picture = Picture(
        format=PictureFormat.PNG,
        bytes_sha256=digest,
        pixels_sha256=digest,
        width=1280,
        height=960,
        frame_count=1,
        frames=(Frame(png, 1280, 960),),
    )
    return TrialCase(name, Meme(picture, meme_text(name, rounds)), Procedure.FULL, within_s=_WAIT_S)


async def unwatched(*_: AnyEvent) -> None:
    """An event sink that stores nothing: the docket has a separate benchmark."""


@dataclass(frozen=True, slots=True)
class KnownFinder:
    """Finds the same three precedents for every meme, after a configurable delay."""

    find_s: float = 0.0
    pictures_s: float = 0.0
    frames: tuple[Frame, ...] = field(
        default_factory=lambda: tuple(Frame(random.Random(i).randbytes(60_000), 512, 384) for i in range(3))
    )

    @property
    def library(self) -> LibraryIdentity:
        """Identity of the library that is searched."""
        return LibraryIdentity(name="known", digest="sha256:0", size=3, encoder="none", with_picture=3)

    async def find(self, **_: object) -> Findings:
        """Returns the three precedents."""
        await asyncio.sleep(self.find_s)
        known = tuple(
            Precedent(
                id=f"precedent-{place}",
                label=Label.HARMFUL,
                text="Words of a precedent",
                similarity=0.8,
                text_similarity=0.8,
                picture_similarity=0.8,
                relation=Relation.SIMILAR,
            )
            for place in range(len(self.frames))
        )
        return Findings(
            library=self.library,
            search=Search(alpha_asked=0.5, alpha=0.5, has_text=True, has_picture=True, exhibits=3, tally=25),
            floors=MinSimilarity(text=0.3, picture=0.5),
            exhibits=known,
            nearest_harmful=known[0],
            nearest_benign=None,
            tally=tuple(TallyEntry(id=p.id, label=p.label, similarity=p.similarity) for p in known),
            vote_settings=VoteSettings(k=5, tau=0.1, prior=0.5, prior_weight=0.5),
        )

    async def pictures(self, ids: Sequence[str]) -> Sequence[Frame | None]:
        """Returns the pictures of the precedents."""
        await asyncio.sleep(self.pictures_s)
        return self.frames[: len(ids)]


class _NoReader:
    identity = "none"

    async def read(self, picture: Picture) -> Reading:
        raise AssertionError("the text is given")
