"""One attempt to hand a message over, and when the next one is due."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum

import httpx2

from court.backends.http import http_client, retry_after
from court.backends.http_addresses import AddressRefused
from court.errors import BadRequest
from serving.settings import WebhookSettings
from serving.version import SOFTWARE
from serving.webhooks.messages import Message
from serving.webhooks.signing import Signer, signature_of, signers_of

AFTER_S = (5.0, 5 * 60.0, 30 * 60.0, 2 * 3600.0, 5 * 3600.0, 10 * 3600.0, 14 * 3600.0, 20 * 3600.0, 24 * 3600.0)
"""Seconds from each attempt that failed to the next, three days in all; after the last there is none."""
ATTEMPTS = len(AFTER_S) + 1
JITTER = 0.2
"""Share by which a pause may be longer, by chance: what failed together is not sent together again."""

CONNECTIONS = 8
"""Connections to one receiver, and messages that are on their way to it at once."""
_THROTTLED = (429, 502, 503, 504)
_PAUSE_S = 30.0
"""Seconds of pause for a receiver that has too much to do and does not say for how long."""
# Whatever a receiver says: one header must not stop its messages for days.
_LONGEST_PAUSE_S = 3600.0
_READ_BYTES = 4096
"""Bytes of an answer that are read, for the connection to be used again; where there are more, it is closed."""


class Outcome(Enum):
    """Outcome of an attempt."""

    DELIVERED = "delivered"
    FAILED = "failed"
    GONE = "gone"
    """The receiver wants nothing any more (410)."""


@dataclass(frozen=True, slots=True)
class ReceiverAnswer:
    """Answer of a receiver.

    Attributes:
        outcome: Outcome of the attempt.
        error: Reason why it failed, in our words; empty where it did not.
        pause_s: Seconds in which it wants nothing; 0 where it did not say.
    """

    outcome: Outcome
    error: str = ""
    pause_s: float = 0.0


class Receiver:
    """A receiver of webhooks that messages are sent to.

    Attributes:
        settings: Settings of it.
        signers: Secrets that messages are signed with.
    """

    def __init__(self, settings: WebhookSettings, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Reads its secrets and connects to nothing yet.

        Raises:
            BadRequest: The secrets, the certificate authorities or the address can't be used.
        """
        self.settings = settings
        self.signers: Sequence[Signer] = signers_of(settings)
        self._clock = clock
        # At the start: a name that DNS has no form for would fail at every attempt.
        try:
            httpx2.URL(settings.url).host.encode("idna")
        except (httpx2.InvalidURL, UnicodeError):
            raise BadRequest(
                f"The url of the webhook {settings.name} is no address: its host is no name.",
                reason="WEBHOOK_URL",
                field="webhooks",
            ) from None
        try:
            self._client = http_client(
                connections=CONNECTIONS,
                # BO-8, with each connection: a name may lead elsewhere than it did last time.
                public_only=not settings.allow_private,
                ca_file=str(settings.ca_file) if settings.ca_file else None,
            )
        except OSError:  # of which the errors of TLS are
            raise BadRequest(
                f"The certificate authorities of the webhook {settings.name} can't be used: its ca_file is no PEM file "
                "of certificates.",
                reason="WEBHOOK_CA",
                field="webhooks",
            ) from None

    async def send(self, message: Message) -> ReceiverAnswer:
        """Makes one attempt, signed now."""
        # At each attempt anew: receivers refuse a timestamp that is some minutes old.
        body, timestamp = message.body(), int(self._clock().timestamp())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": SOFTWARE.replace(" ", "/"),
            "webhook-id": message.id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": signature_of(self.signers, message.id, timestamp, body),
        }
        answer: ReceiverAnswer | None = None
        try:
            async with (
                asyncio.timeout(self.settings.timeout),
                self._client.stream("POST", self.settings.url, content=body, headers=headers) as response,
            ):
                answer = _answer_in(response)
                # The status has come: what else comes, or does not, changes nothing.
                with suppress(httpx2.HTTPError):
                    await _read_some(response)
                return answer
        except TimeoutError:
            # Nor does a body that comes too slowly change a status that came in time.
            return answer or ReceiverAnswer(Outcome.FAILED, "no answer in time")
        except AddressRefused:
            return ReceiverAnswer(
                Outcome.FAILED, "the name leads to an address that is not public (allow_private is off)"
            )
        except httpx2.HTTPError as error:
            return ReceiverAnswer(Outcome.FAILED, _words(error))

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._client.aclose()


def next_attempt(attempts: int, now: datetime) -> datetime | None:
    """Returns the time of the attempt after so many that failed; None where there is none."""
    if attempts >= ATTEMPTS:
        return None
    return now + timedelta(seconds=AFTER_S[attempts - 1] * random.uniform(1.0, 1.0 + JITTER))


def _answer_in(response: httpx2.Response) -> ReceiverAnswer:
    status = response.status_code
    if response.is_success:
        return ReceiverAnswer(Outcome.DELIVERED)
    if status == 410:
        return ReceiverAnswer(Outcome.GONE, "status 410")
    pause = 0.0
    if status in _THROTTLED:
        wait_s = retry_after(response.headers)
        # 503 alone says that it failed; with a time in it, that it has too much to do.
        pause = min(wait_s or (0.0 if status == 503 else _PAUSE_S), _LONGEST_PAUSE_S)
    # A redirect too: where it leads nobody has allowed (BO-8).
    return ReceiverAnswer(Outcome.FAILED, f"status {status}", pause)


async def _read_some(response: httpx2.Response) -> None:
    read = 0
    async for chunk in response.aiter_raw():
        read += len(chunk)
        if read > _READ_BYTES:
            return


def _words(error: Exception) -> str:
    """Reason in words of ours: what libraries say holds addresses, and what servers say is theirs."""
    match error:
        case httpx2.ConnectTimeout():
            return "no connection in time"
        case httpx2.ConnectError():
            return "no connection: the name is unknown, nobody listens there, or its certificate is not trusted"
        case _:
            return "the connection broke, or the answer can't be read"
