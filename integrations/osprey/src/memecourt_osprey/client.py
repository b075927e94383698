"""Asks a MemeCourt over HTTP for a verdict."""

from __future__ import annotations

import os
from typing import Any

import requests

URL, TOKEN = "MEMECOURT_URL", "MEMECOURT_TOKEN"
"""Environment variables: where the court is, and by which token it knows this caller."""
TIMEOUT_S = 30


class NoVerdictError(Exception):
    """The court gave no verdict; its reason is the message. That is no sign that a meme is harmless."""


def judge(*, image_url: str, text: str, namespace: str, content_id: str) -> dict[str, Any]:
    """Returns the verdict on a meme as the court's JSON.

    Args:
        image_url: Address of the picture, from a host that the court may fetch from, or a ``data:`` address; empty for
            a text alone.
        text: Text of the meme; empty to have it read off the picture.

    Raises:
        NoVerdictError: The court refused the meme, is busy, or can't be reached.
    """
    url = os.environ.get(URL)
    if not url:
        raise NoVerdictError(f"{URL} does not say where the court is")
    meme: dict[str, Any] = {"content": {"namespace": namespace, "id": content_id}}
    meme |= {"image_url": image_url} if image_url else {}
    meme |= {"text": text} if text else {}
    headers = {"x-timeout-s": str(TIMEOUT_S)}
    if token := os.environ.get(TOKEN):
        headers["authorization"] = f"Bearer {token}"
    try:
        answer = requests.post(
            f"{url.rstrip('/')}/v1/judge", json=meme, headers=headers, timeout=TIMEOUT_S + 5, allow_redirects=False
        )
        said = answer.json()
    except (requests.RequestException, ValueError) as error:
        raise NoVerdictError(f"the court can't be reached: {type(error).__name__}") from None
    if answer.status_code != requests.codes.ok or "decision" not in said:
        raise NoVerdictError(f"{said.get('reason', answer.status_code)}: {said.get('detail', 'no verdict')}")
    return dict(said)


def harm_score(verdict: dict[str, Any]) -> float:
    """Returns the probability of harm; 1 where a person has to look and no harm was found."""
    # So no threshold lets pass what nobody can call harmless.
    allowed = verdict["decision"] == "allow"
    if not allowed and verdict["label"] != "LABEL_HARMFUL":
        return 1.0
    return float(verdict.get("harm_score", 0.0 if allowed else 1.0))
