"""A court that uses the real vLLM, and generated memes for it, decoded like untrusted pictures and harmless in text."""

from __future__ import annotations

import io
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from PIL import Image

from court.backends.chat.capabilities import probe
from court.backends.chat.client import ChatCompletions
from court.backends.chat.wire import ServerAnswer
from court.backends.http import Load, http_client
from court.backends.pictures.reader import GuardedPictureReader
from court.events import Procedure
from court.meme import Frame, Meme
from court.ports import ChatReply, ChatRequest
from court.settings import TrialSettings
from court.trial import Court, TrialCase
from eval.perf.trials import KnownFinder, court_of
from eval.synthetic.scenes import SCENES, draw_meme
from serving.models.vllm import VllmServer

PICTURES = 7
"""In one prompt at most: four frames of a meme, and three precedents'."""
_CONCURRENCY = 64
# Multiples of 28 pixels, the size of a merged patch of the model, so that the server resizes nothing.
_SIZE = (252, 168)


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A recorded call.

    Attributes:
        sent: Time of sending, in seconds of the monotonic clock.
    """

    request: ChatRequest
    is_odds: bool
    answer: ServerAnswer
    sent: float
    answered: float

    @property
    def reply(self) -> ChatReply:
        """Reply as the court gets it."""
        return self.answer.reply(self.answered - self.sent)


class Recorded(ChatCompletions):
    """The real client, which also records its calls.

    Attributes:
        begun: Every request, as it was sent.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.begun: list[ChatRequest] = []
        self.asked: list[RecordedCall] = []

    async def answer(
        self, request: ChatRequest, *, within_s: float, extra: dict[str, Any] | None = None
    ) -> ServerAnswer:
        """Answers like the base class, and records the call."""
        sent = time.monotonic()
        self.begun.append(request)
        answer = await super().answer(request, within_s=within_s, extra=extra)
        self.asked.append(
            RecordedCall(request=request, is_odds=bool(extra), answer=answer, sent=sent, answered=time.monotonic())
        )
        return answer

    def forget(self) -> None:
        """Clears the recorded calls."""
        self.begun.clear()
        self.asked.clear()


@asynccontextmanager
async def court_before(server: VllmServer, settings: TrialSettings) -> AsyncIterator[tuple[Court, Recorded]]:
    """Yields a court and its client, which has probed the capabilities of the vLLM."""
    load = Load(_CONCURRENCY)
    async with http_client() as http:
        model = Recorded(base_url=server.base_url, model=server.model, api_key=server.api_key, http=http, load=load)
        await probe(model, pictures=PICTURES)
        # The probe's calls are not part of a trial.
        model.forget()
        finder = KnownFinder(frames=tuple(_precedent(number) for number in range(3)))
        yield court_of(model, settings, finder=finder, temperature=1.0), model


async def drawn_case(reader: GuardedPictureReader, number: int) -> TrialCase:
    """Returns a new meme: another number gives another picture and another text."""
    text = f"the people from Blueland\nmeet for tea number {number}"
    drawn = draw_meme(SCENES[number % len(SCENES)], text, size=_SIZE, seed=number)
    picture = await reader.read(_png(drawn))
    return TrialCase(f"drawn {number}", Meme(picture, text.replace("\n", " ")), Procedure.FULL, within_s=600.0)


def _precedent(number: int) -> Frame:
    drawn = draw_meme(SCENES[number], f"tea in Redland {number}", size=(140 + 28 * number, 112))
    return Frame(_png(drawn), *drawn.size)


def _png(drawn: Image.Image) -> bytes:
    file = io.BytesIO()
    drawn.save(file, "PNG")
    return file.getvalue()
