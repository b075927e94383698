"""Overhead of the court over its model calls, against a fake server of known speed.

``trial-floor``: how close a trial comes to the shortest time that its calls allow: ``D + R (q + a) + s + J``, from the
time that the server, by its own settings and token counts, worked on each of these calls. Any wall-clock time beyond it
is our overhead. Searching precedents and reading their pictures take a realistic time here, and must not add to it. Its
second figure, ``naive_over_ours``, is how much faster a trial is than Algorithm 1 as printed, which makes these calls
one after the other, one side after the other: ``D + 2 R (q + a + s) + J`` of server time, over the trial's wall time.

``saturation``: the share of a busy server's capacity that becomes verdicts, with 64 concurrent trials on a server that
works on 16 calls. The rest is lost to calls that turned out to be superfluous, to a server that waited for us, and to
the end, when trials run out and the server is no longer full.

``call_cpu``, a part of the benchmark of the service, is the CPU time of our process for each model call of a trial. The
baseline is a bare POST of some 8 kB through the same HTTP client: it excludes all of our code, and shows the speed of
the machine.

The court is the real one and calls the model through the real client; the server is a separate process. Provided, and
not measured, are the meme's text, a picture that is never decoded, and a finder of precedents with fixed results.
"""

import asyncio
import itertools
import json
import random
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from court.backends.chat.client import ChatCompletions
from court.backends.chat.wire import Capabilities, LogProbs
from court.backends.http import Load, http_client
from court.events import AnswerGiven, AnyEvent, ModelCall, Procedure, QuestionAsked, Side, Summarised
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
from eval.perf.bench import Result
from eval.standin.process import model_server
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

    def of(self, call: ModelCall | None, calls: int = 1) -> float:
        """Returns the seconds that the server works on a call, from its settings and its token counts."""
        assert call is not None, "a full trial has a call at each of these events"
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
class Needed:
    """The calls that a trial needs, in seconds of server time; without calls that its stop made superfluous."""

    rounds: tuple[int, ...]
    """Rounds that count, of each side."""
    floor: float
    """``D + R (q + a) + s + J``, by the slower side: the longest chain of calls that depend on one another."""
    naive: float
    """``D + 2 R (q + a + s) + J``: all calls of Algorithm 1, one after the other."""
    score: float
    """The one-token calls for the score, together."""


def needed(record: TrialRecord, speed: Speed) -> Needed:
    """Returns the time that a trial with a verdict needs."""
    rounds = {side: rested.rounds for side, rested in record.rested.items()}
    chains, sums = dict.fromkeys(Side, 0.0), dict.fromkeys(Side, 0.0)
    for event in record.events:
        # Without later rounds, which the stop made superfluous.
        if isinstance(event, QuestionAsked | AnswerGiven | Summarised) and event.round <= rounds[event.side]:
            seconds = speed.of(event.call)
            sums[event.side] += seconds
            # Of the summaries only the last is on the chain: the others are written during the next round.
            if not isinstance(event, Summarised) or event.round == rounds[event.side]:
                chains[event.side] += seconds
    described, verdict = record.described, record.verdict_event
    assert described is not None and verdict is not None
    both = speed.of(described.call) + speed.of(verdict.call)
    # One event for several calls: one for each order of the options.
    score = speed.of(verdict.odds.call, len(verdict.odds.harmful)) if verdict.odds else 0.0
    return Needed(
        tuple(rounds[side] for side in Side), both + max(chains.values()), naive=both + sum(sums.values()), score=score
    )


@asynccontextmanager
async def bar(address: str, *, concurrency: int = 1024, finder: "KnownFinder | None" = None) -> AsyncIterator[Court]:
    """Yields a court that uses a server."""
    load = Load(concurrency)
    async with http_client() as http:
        model = ChatCompletions(base_url=f"{address}/v1", model="stand-in", capabilities=CAN, http=http, load=load)
        yield court_of(model, TrialSettings(), finder=finder)


def court_of(
    model: ReplicatedModel, settings: TrialSettings, *, finder: "KnownFinder | None" = None, temperature: float = 0.0
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


_ROUNDS = 4
_FLOOR_SPEED = Speed(call_s=0.05, prompt_token_s=0.00002, output_token_s=0.006)
_FLOOR_ROUNDS = (6, 10)
_BUSY_SPEED = Speed(call_s=0.04, prompt_token_s=0.00002, output_token_s=0.004)
_BUSY_ROUNDS = (2, 3, 4, 5, 6)
_CAPACITY = 16
_AT_ONCE = 64


@asynccontextmanager
async def _played(speed: Speed, *, capacity: int = 1024, finder: KnownFinder | None = None) -> AsyncIterator[Court]:
    """Yields a court whose model server works on that many calls at that speed, after a first trial."""
    with model_server("--play", *speed.flags, "--capacity", str(capacity)) as address:
        async with bar(address, concurrency=capacity, finder=finder) as court:
            # Connections are opened, and the common beginning of all prompts is cached, before the clock starts.
            await court.run(case("warming up", 2), unwatched)
            yield court


def trial_floor(*, trials: int = 4) -> Result:
    """Runs the benchmark, with that many trials of each number of rounds."""
    return asyncio.run(_over_floor(trials))


async def _over_floor(trials: int) -> Result:
    over_floor: list[float] = []
    naive: dict[int, list[float]] = {rounds: [] for rounds in _FLOOR_ROUNDS}
    async with _played(_FLOOR_SPEED, finder=KnownFinder(find_s=0.1, pictures_s=0.05)) as court:
        for number, rounds in itertools.product(range(trials), _FLOOR_ROUNDS):
            trial = case(f"number {number} {rounds}", rounds)
            began = time.perf_counter()
            record = await court.run(trial, unwatched)
            wall = time.perf_counter() - began
            found = needed(record, _FLOOR_SPEED)
            assert set(found.rounds) == {rounds}, "the stand-in did not keep to its part"
            over_floor.append(wall / found.floor)
            naive[rounds].append(found.naive / wall)
    figures = {f"naive_over_ours_{rounds}": statistics.median(ratios) for rounds, ratios in naive.items()}
    goals = {"wall_over_floor": "<= 1.05", **dict.fromkeys(figures, ">= 2.5")}
    return Result({"wall_over_floor": statistics.median(over_floor), **figures}, goals)


def saturation(*, trials: int = 64) -> Result:
    """Runs the benchmark."""
    return asyncio.run(_all_at_once(trials))


async def _all_at_once(trials: int) -> Result:
    async with _played(_BUSY_SPEED, capacity=_CAPACITY) as court:
        cases = [case(f"number {number}", _BUSY_ROUNDS[number % len(_BUSY_ROUNDS)]) for number in range(trials)]
        began = time.perf_counter()
        records = await asyncio.gather(*(court.run(each, unwatched) for each in cases))
        wall = time.perf_counter() - began
    works = [needed(record, _BUSY_SPEED) for record in records]
    of_capacity = sum(work.naive + work.score for work in works) / (_CAPACITY * wall)
    return Result({"of_capacity": of_capacity}, {"of_capacity": ">= 0.95"})


def call_cpu(*, calls: int = 300, trials: int = 16) -> Result:
    """Runs the benchmark."""
    return asyncio.run(_calls(calls, trials))


async def _calls(calls: int, trials: int) -> Result:
    """Compares the CPU time of a bare POST with that of a call in whole trials: prompts, client, replies and events."""
    body = {"model": "stand-in", "messages": [{"role": "user", "content": "word " * 1600}], "max_tokens": 100}
    bare, figures = [], {}
    with model_server("--play") as address:
        async with bar(address) as court, http_client() as http:

            async def calls_served() -> int:
                return int((await http.get(f"{address}/stats")).json()["calls"])

            for _ in range(calls):
                before = time.process_time()
                response = await http.post(f"{address}/v1/chat/completions", json=body)
                assert json.loads(response.content)["choices"]
                bare.append(time.process_time() - before)
            for name, at_once in (("trial_call_over_bare", 1), ("concurrent_trial_call_over_bare", _AT_ONCE)):
                spent = []
                for turn in range(max(2, trials // at_once)):
                    cases = [case(f"number {number} of {at_once} in turn {turn}", _ROUNDS) for number in range(at_once)]
                    # In this order, and in reverse below, so that the cost of fetching the count is in neither reading.
                    served, before = await calls_served(), time.process_time()
                    await asyncio.gather(*(court.run(each, unwatched) for each in cases))
                    seconds = time.process_time() - before
                    spent.append(seconds / (await calls_served() - served))
                figures[name] = statistics.median(spent) / statistics.median(bare)
    return Result(figures, dict.fromkeys(figures, "<= 3"))
