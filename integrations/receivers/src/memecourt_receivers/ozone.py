"""Receives webhooks of a MemeCourt, and emits a moderation event in Ozone for each.

A webhook is answered with 204 only once Ozone has the event. With any other answer the court sends it again, for three
days, and says so in ``memecourt webhooks list``: nothing is passed over, and nothing is read as harmless.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import requests
from standardwebhooks import Webhook, WebhookVerificationError

PORT = 8090
TIMEOUT_S = 10
"""Seconds for each request to Ozone: with a new session three of them, within the court's patience of 30."""
LARGEST_BODY = 64 * 1024
_EMIT = "tools.ozone.moderation.emitEvent"
_EVENT = "tools.ozone.moderation.defs#modEvent"

_log = logging.getLogger("memecourt_receivers.ozone")


class NotForOzoneError(Exception):
    """A message is about no record or account of the network; sent again, it will be no other."""


class NotTakenError(Exception):
    """Ozone did not take an event."""


def event_of(kind: str, data: Mapping[str, Any], label: str) -> dict[str, Any] | None:
    """Returns the moderation event for a message, with the label that stands for "harmful"; None without one."""
    verdict = f"MemeCourt, verdict {data.get('verdict_id', '')}"
    if kind == "memecourt.verdict.given" and data["decision"] == "block":
        return _labelled(f"{verdict}: found harmful.", create=[label])
    if kind == "memecourt.review.wanted":
        asked = "an appeal was opened" if "appeal" in data else "another opinion is wanted"
        reasons = ", ".join(data.get("review_reasons", ())) or asked
        return _reported(f"{verdict}: a person has to decide ({reasons}).")
    if kind == "memecourt.trial.failed":
        return _reported(f"{verdict}: there is none ({data['failure']['reason']}). A person has to decide.")
    if kind == "memecourt.review.decided":
        said = f"{verdict}: {data['review']['outcome'].removeprefix('REVIEW_OUTCOME_').lower()} by a person."
        # What is no harmful verdict any more takes the label back, also where it was never given: Ozone then has none.
        return _labelled(said, create=[label]) if data["decision"] == "block" else _labelled(said, negate=[label])
    return None


def _labelled(comment: str, create: list[str] | None = None, negate: list[str] | None = None) -> dict[str, Any]:
    return {
        "$type": f"{_EVENT}Label",
        "createLabelVals": create or [],
        "negateLabelVals": negate or [],
        "comment": comment,
    }


def _reported(comment: str) -> dict[str, Any]:
    reason = "com.atproto.moderation.defs#reasonOther"
    return {"$type": f"{_EVENT}Report", "reportType": reason, "comment": comment}


def subject_of(content_id: str) -> dict[str, str]:
    """Returns the subject that a content's id names: ``at://… CID`` for a record, ``did:…`` for an account.

    Raises:
        NotForOzoneError: It names neither.
    """
    uri, _, cid = content_id.partition(" ")
    if uri.startswith("at://") and cid:
        return {"$type": "com.atproto.repo.strongRef", "uri": uri, "cid": cid}
    if uri.startswith("did:") and not cid:
        return {"$type": "com.atproto.admin.defs#repoRef", "did": uri}
    raise NotForOzoneError('the content\'s id is neither "at://… CID" nor "did:…"')


class OzoneEmitter:
    """Emits events as one account, by its server (PDS), which hands them on to Ozone."""

    def __init__(self, pds: str, account: str, password: str, *, ozone: str, label: str) -> None:
        """Opens no session yet.

        Args:
            account: Handle or DID of the account, which must be a moderator there.
            ozone: DID of the labeler.
        """
        self._pds = pds.rstrip("/")
        self._credentials = {"identifier": account, "password": password}
        self._ozone = ozone
        self._label = label
        self._session: Mapping[str, Any] | None = None
        self._lock = threading.Lock()

    def tell(self, message: Mapping[str, Any]) -> bool:
        """Emits the event of a message; False where there was nothing to tell.

        Raises:
            NotForOzoneError: It is about nothing that Ozone knows.
            NotTakenError: Ozone, or the server before it, did not take it.
        """
        kind, data = message["type"], message["data"]
        event = event_of(kind, data, self._label)
        if event is None:
            return False
        body = {
            "event": event,
            "subject": subject_of(data["content"]["id"]),
            "modTool": {"name": "memecourt", "meta": {"entry": data["entry"], "verdictId": data["verdict_id"]}},
            # One verdict has several events of one type: a label, and its being taken back.
            "externalId": f"{data['verdict_id']}/{data['entry']}",
        }
        session = self._session_after(None)
        answer = self._emitted(body, session)
        if _error_in(answer) in ("ExpiredToken", "InvalidToken"):  # a session ends after some hours
            answer = self._emitted(body, self._session_after(session))
        error = _error_in(answer)
        if answer.ok or error == "DuplicateExternalId":  # taken before, and the court was not told so
            return True
        raise NotTakenError(f"status {answer.status_code} {error}".strip())

    def _emitted(self, body: Mapping[str, Any], session: Mapping[str, Any]) -> requests.Response:
        return self._post(_EMIT, {**body, "createdBy": session["did"]}, session["accessJwt"])

    def _session_after(self, ended: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """The session that is open; another one in place of what has ended, which one of several threads opens."""
        with self._lock:
            if self._session is None or self._session is ended:
                answer = self._post("com.atproto.server.createSession", self._credentials)
                if not answer.ok:
                    raise NotTakenError(f"no session: status {answer.status_code} {_error_in(answer)}".strip())
                self._session = answer.json()
            return self._session

    def _post(self, method: str, body: Mapping[str, Any], token: str = "") -> requests.Response:
        headers = (
            {"authorization": f"Bearer {token}", "atproto-proxy": f"{self._ozone}#atproto_labeler"} if token else {}
        )
        try:
            return requests.post(
                f"{self._pds}/xrpc/{method}", json=body, headers=headers, timeout=TIMEOUT_S, allow_redirects=False
            )
        except requests.RequestException as error:
            raise NotTakenError(f"not reached: {type(error).__name__}") from None


def _error_in(answer: requests.Response) -> str:
    try:
        said = answer.json()
    except ValueError:
        return ""
    return str(said.get("error", "")) if isinstance(said, dict) else ""


def handler_of(verifier: Webhook, emitter: OzoneEmitter) -> type[BaseHTTPRequestHandler]:
    """Returns the handler of a server that receives webhooks."""

    class Receiver(BaseHTTPRequestHandler):
        timeout = 30  # seconds in which a request has to come

        def do_POST(self) -> None:
            status, why = self._status()
            if why:
                _log.warning("message=%s status=%d: %s", self.headers.get("webhook-id", ""), status, why)
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def _status(self) -> tuple[int, str]:
            length = self.headers.get("content-length", "")
            if not length.isdecimal() or int(length) > LARGEST_BODY:
                self.close_connection = True
                return 413, "no length, or too large"
            body = self.rfile.read(int(length))
            try:
                message = verifier.verify(body, dict(self.headers))
            except (WebhookVerificationError, ValueError):  # the latter of a signature without a comma
                return 401, "its signature is not the court's, or too old"
            try:
                emitter.tell(message)
            except NotForOzoneError as error:
                return 422, str(error)
            except NotTakenError as error:
                return 502, f"Ozone did not take it: {error}"
            return 204, ""

        def log_message(self, *_: object) -> None:
            """Logs nothing for each request."""

    return Receiver


def main() -> None:
    """Serves until it is ended."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    try:
        emitter = OzoneEmitter(
            os.environ["OZONE_PDS"],
            os.environ["OZONE_ACCOUNT"],
            os.environ["OZONE_PASSWORD"],
            ozone=os.environ["OZONE_DID"],
            label=os.environ.get("OZONE_LABEL", "harmful-meme"),
        )
        verifier = Webhook(os.environ["MEMECOURT_SECRET"])
    except KeyError as error:
        sys.exit(f"{error.args[0]} is not set: see docs/integrations.md of MemeCourt.")
    except ValueError:  # of the library, for what is no base64
        sys.exit("MEMECOURT_SECRET is no secret: it is what `memecourt webhooks secret FILE` wrote, whsec_….")
    host, port = os.environ.get("MEMECOURT_LISTEN", f"127.0.0.1:{PORT}").rsplit(":", 1)
    with ThreadingHTTPServer((host, int(port)), handler_of(verifier, emitter)) as server:
        print(f"receiving on http://{host}:{server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
