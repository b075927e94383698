"""Court of another process that the memes of visitors are given to, through the client package."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from dataclasses import dataclass, field

import grpc

from court.errors import BadInput, NotLoaded, Unavailable
from court.events import Procedure
from memecourt.aio import AsyncClient
from memecourt.client import CallError, JudgeError, Retries, judge_request
from memecourt.v1 import court_pb2 as wire
from serving.console.registry import Trying
from serving.docket.ports import TrialReader
from serving.judging.judge import TRY_S, opened_trial
from serving.judging.request import TrialRequest

RETRIES = Retries(attempts=2, ready_s=2.0)
"""A person waits for the page: a court that is not there is told at once."""


@dataclass(frozen=True, slots=True, eq=False)
class RemoteCourt:
    """A court on the same docket, at another address."""

    client: AsyncClient
    trials: TrialReader
    _asked: set[asyncio.Task[wire.JudgeResponse]] = field(default_factory=set)

    @property
    def trying(self) -> Trying:
        """Returns what the pages need of it; procedures that it lacks are refused when they are chosen."""
        return Trying(self.start, tuple(Procedure))

    async def start(self, request: TrialRequest) -> str:
        """Has a meme judged in the background; returns its trial's id once it is opened.

        Raises:
            BadInput: The court refused the meme.
            NotLoaded: The court is not set up for the procedure.
            Unavailable: The court gave no answer, or does not take this console's token.
        """
        sent = judge_request(
            request.image or None,
            text=request.text,
            procedure=wire.Procedure.Value(f"PROCEDURE_{request.procedure}"),
            namespace=request.namespace,
            request_id=str(uuid.uuid4()),
        )
        answering = asyncio.create_task(self.client.ask(sent, timeout=TRY_S))
        self._asked.add(answering)
        answering.add_done_callback(self._asked.discard)
        # Its failure is in the record, which is what its page shows.
        answering.add_done_callback(lambda done: done.cancelled() or done.exception())

        async def trial_of() -> str | None:
            with suppress(CallError):  # not begun yet; whatever else is wrong, the answer says
                state = await self.client.verdict(request_id=sent.request_id, namespace=request.namespace, timeout=5.0)
                return state.trial_id
            return None

        if (opened := await opened_trial(answering, trial_of, self.trials)) is not None:
            return opened
        try:
            return (await answering).verdict_id
        except JudgeError as error:
            if trial_id := error.metadata.get("trial_id"):
                return trial_id
            raise _refusal(error) from None


def _refusal(error: JudgeError) -> BadInput | NotLoaded | Unavailable:
    reason = error.reason or None
    if error.code is grpc.StatusCode.INVALID_ARGUMENT:
        return BadInput(error.message, reason=reason, field=error.field or None)
    if error.code is grpc.StatusCode.FAILED_PRECONDITION:
        return NotLoaded(error.message, reason=reason)
    if error.code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return Unavailable(f"The court does not take the token of this console: {error.message}", reason=reason)
    # Without a reason the message is gRPC's own and may name addresses.
    words = error.message if error.reason else "The court can't be reached: try again in a minute."
    return Unavailable(words, reason=reason)
