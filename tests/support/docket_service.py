"""Helpers of tests of docket service."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from court import events as happened
from court.verdict import Label, Strength, Strengths, Verdict
from memecourt.v1 import court_pb2 as wire
from memecourt.v1.court_pb2_grpc import DocketStub
from retrieval.library.postgres.address import Address
from serving.access.callers import Caller, Scope
from serving.docket.open import Docket
from serving.rpc.docket import DocketService
from serving.rpc.flow_control import ReceiveBudget
from tests.support.service_calls import caller_metadata, running_services

AT = datetime(2026, 3, 4, 5, 6, 7, 890123, tzinfo=UTC)
TIMEOUT = 60
REVIEW = frozenset({Scope.REVIEW})
CALLERS = {
    "ada": Caller("ada", REVIEW),
    "forum": Caller("forum", REVIEW, frozenset({"forum", "blog"})),
    "nobody": Caller("nobody", REVIEW, frozenset()),
}
HARMFUL = Verdict(
    label=Label.HARMFUL, strengths=Strengths(harmful=Strength.STRONG, benign=Strength.WEAK), rationale="It mocks."
)


class ReviewCounter:
    """Records the outcomes of reviews reported to telemetry."""

    def __init__(self) -> None:
        self.outcomes: list[happened.ReviewOutcome] = []
        self.metrics = self

    def count(self, name: str, outcome: happened.ReviewOutcome) -> None:
        assert name == "reviews"
        self.outcomes.append(outcome)


@dataclass
class Scene:
    """A docket, its service and a stub."""

    docket: Any
    service: DocketService
    channel: grpc.aio.Channel
    counted: list[happened.ReviewOutcome]
    changes: list[None]

    def __post_init__(self) -> None:
        self.stub = DocketStub(self.channel)

    async def tried(
        self,
        trial_id: str = "",
        *,
        at: datetime = AT,
        namespace: str = "",
        end: Verdict | str | None = HARMFUL,
        text: str = "a tame text",
        procedure: happened.Procedure = happened.Procedure.SUMMARY,
    ) -> str:
        """Stores a trial that ended in a verdict, failed for a reason, or is open (None)."""
        trial_id = trial_id or str(uuid.uuid4())
        for event in a_trial(trial_id, at=at, namespace=namespace, end=end, text=text, procedure=procedure):
            await self.docket.writer.append(event)
        return trial_id

    async def listed(self, caller: str = "", size: int = 0, **filters: Any) -> list[wire.TrialSummary]:
        """Returns all pages of a listing."""
        found: list[wire.TrialSummary] = []
        token = ""
        while True:
            request = wire.ListTrialsRequest(page_size=size, page_token=token, filter=wire.TrialFilter(**filters))
            page = await self.stub.ListTrials(request, timeout=TIMEOUT, metadata=caller_metadata(caller))
            found += page.trials
            token = page.next_page_token
            if not token:
                return found

    async def exported(self, caller: str = "", **filters: Any) -> list[wire.Trial]:
        request = wire.ExportTrialsRequest(filter=wire.TrialFilter(**filters))
        call = self.stub.ExportTrials(request, timeout=TIMEOUT, metadata=caller_metadata(caller))
        return [one.trial async for one in call]

    async def reviewed(self, trial_id: str, caller: str = "", **fields: Any) -> wire.TrialSummary:
        defaults = {
            "outcome": wire.REVIEW_OUTCOME_UPHELD,
            "reason": "It is right.",
            "reviewer": "" if caller else "bea",
        }
        request = wire.ReviewVerdictRequest(trial_id=trial_id, **{**defaults, **fields})
        return (await self.stub.ReviewVerdict(request, timeout=TIMEOUT, metadata=caller_metadata(caller))).summary


def a_trial(
    trial_id: str,
    *,
    at: datetime = AT,
    namespace: str = "",
    end: Verdict | str | None = HARMFUL,
    text: str = "a tame text",
    procedure: happened.Procedure = happened.Procedure.SUMMARY,
) -> list[happened.AnyEvent]:
    meme = happened.MemeIdentity(
        bytes_sha256="a" * 64, pixels_sha256="b" * 64, format="PNG", width=4, height=3, frame_count=1,
        frames_used=(0,), namespace=namespace, content_id=f"content of {trial_id}",
    )  # fmt: skip
    events: list[happened.AnyEvent] = [
        happened.TrialOpened(
            trial_id=trial_id, seq=0, at=at, procedure=procedure, meme=meme, request_id=f"request of {trial_id}",
            policy=happened.PolicyReference(id="p", version="1", digest="sha256:0"), settings={},
            versions=happened.Versions(software="test", settings="sha256:0"),
        ),
        happened.TextRead(trial_id=trial_id, seq=1, at=at, text=text, source=happened.TextSource.CALLER),
    ]  # fmt: skip
    if isinstance(end, Verdict):
        events.append(happened.VerdictGiven(trial_id=trial_id, seq=2, at=at, verdict=end))
    elif end is not None:
        events.append(
            happened.TrialFailed(
                trial_id=trial_id, seq=2, at=at, step="text", reason=end, message="gone", retryable=True
            )
        )
    return events


@asynccontextmanager
async def a_scene(place: Path | Address, *, docket: Any = None) -> AsyncIterator[Scene]:
    docket = docket or Docket.open(place)
    counter = ReviewCounter()
    changes: list[None] = []
    service = DocketService(counter, memory=ReceiveBudget(64 * 2**20, 20.0))  # type: ignore[arg-type]
    service.open(SimpleNamespace(docket=docket), lambda: changes.append(None))  # type: ignore[arg-type]
    try:
        async with running_services(service.handler(), callers=CALLERS) as channel:
            yield Scene(docket, service, channel, counter.outcomes, changes)
        await service.empty(5)
    finally:
        await docket.close()


@pytest.fixture
def sqlite(tmp_path: Path) -> Path:
    return tmp_path / "docket.sqlite"


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, sqlite: Path) -> Path | Address:
    if request.param == "sqlite":
        return sqlite
    address: Address = request.getfixturevalue("bare_database")
    import psycopg

    with psycopg.connect(**address.parameters(), autocommit=True) as connection:
        connection.execute("SET client_min_messages = warning")
        connection.execute("DROP SCHEMA IF EXISTS memecourt_docket CASCADE")
    return address
