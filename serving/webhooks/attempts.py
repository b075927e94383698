"""Delivery attempts of a message, and the retry schedule."""

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
"""Delays in seconds after each failed attempt, three days in all; after the last, the message is given up."""
ATTEMPTS = len(AFTER_S) + 1
JITTER = 0.2
"""Maximum random extension of a delay, as a share, so that messages that failed together are not retried together."""

CONNECTIONS = 8
"""Maximum number of connections to one receiver, and so of messages in flight."""
_THROTTLED = (429, 502, 503, 504)
_PAUSE_S = 30.0
"""Pause in seconds for an overloaded receiver that does not say how long."""
# Caps the receiver's own value: one header must not stop its messages for days.
_LONGEST_PAUSE_S = 3600.0
_READ_BYTES = 4096
"""Bytes of an answer that are read so that the connection can be reused; it is closed if there are more."""


class Outcome(Enum):
    """Outcome of an attempt."""

    DELIVERED = "delivered"
    FAILED = "failed"
    GONE = "gone"
    """The receiver wants no more messages (410)."""


@dataclass(frozen=True, slots=True)
class ReceiverAnswer:
    """Answer of a receiver.

    Attributes:
        pause_s: Pause in seconds that the receiver asked for; 0 for none.
    """

    outcome: Outcome
    error: str = ""
    pause_s: float = 0.0


class Receiver:
    """A webhook receiver."""

    def __init__(self, settings: WebhookSettings, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Reads the secrets without connecting.

        Raises:
            BadRequest: The secrets, the certificate authorities or the address can't be used.
        """
        self.settings = settings
        self.signers: Sequence[Signer] = signers_of(settings)
        self._clock = clock
        # At startup, since an invalid host name would fail at every attempt.
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
                # BO-8, for each connection: a name may resolve to another address than last time.
                public_only=not settings.allow_private,
                ca_file=str(settings.ca_file) if settings.ca_file else None,
            )
        except OSError:  # includes TLS errors
            raise BadRequest(
                f"The certificate authorities of the webhook {settings.name} can't be used: its ca_file is no PEM file "
                "of certificates.",
                reason="WEBHOOK_CA",
                field="webhooks",
            ) from None

    async def send(self, message: Message) -> ReceiverAnswer:
        """Makes one attempt, with a fresh signature."""
        # Signed for each attempt, since receivers refuse timestamps that are some minutes old.
        body, timestamp = message.body(), int(self._clock().timestamp())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"memecourt/{SOFTWARE}",
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
                # The status has arrived, and the body does not matter.
                with suppress(httpx2.HTTPError):
                    await _read_some(response)
                return answer
        except TimeoutError:
            # A slow body does not invalidate a status that arrived in time.
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
    """Returns the time of the next attempt after a number of failures; None if there is none."""
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
        # A 503 alone is a failure; with Retry-After it means overload.
        pause = min(wait_s or (0.0 if status == 503 else _PAUSE_S), _LONGEST_PAUSE_S)
    # Includes redirects, whose target nobody has allowed (BO-8).
    return ReceiverAnswer(Outcome.FAILED, f"status {status}", pause)


async def _read_some(response: httpx2.Response) -> None:
    read = 0
    async for chunk in response.aiter_raw():
        read += len(chunk)
        if read > _READ_BYTES:
            return


def _words(error: Exception) -> str:
    """Describes an error in our own words: messages of libraries and servers may contain addresses or other data."""
    match error:
        case httpx2.ConnectTimeout():
            return "no connection in time"
        case httpx2.ConnectError():
            return "no connection: the name is unknown, nobody listens there, or its certificate is not trusted"
        case _:
            return "the connection broke, or the answer can't be read"
