"""The oracle behind a socket: the replies of the fake model server under ``--play synthetic``."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from eval.synthetic.oracle import Ability, Oracle


class ServedOracle:
    """Answers chat completions. Pictures that were sent before may be sent by id, as in vLLM."""

    def __init__(self, ability: Ability | None = None) -> None:
        """Creates an oracle of this ability; None for the default ability."""
        self._oracle = Oracle(ability or Ability())
        self._pictures: dict[str, bytes] = {}

    def answer(self, payload: Mapping[str, Any]) -> str | None:
        """Returns the reply to a chat completion; None if it is not part of a full trial."""
        wanted = (payload.get("response_format") or {}).get("json_schema", {}).get("schema", {}).get("properties", {})
        system = next((m["content"] for m in payload["messages"] if m["role"] == "system"), "")
        reply = self._oracle.reply(system, self._parts(payload), wanted)
        return None if reply is None else json.dumps(reply)

    def odds(self, payload: Mapping[str, Any]) -> dict[str, float]:
        """Returns probabilities of the first token; equal ones if the question is not part of a trial."""
        parts = self._parts(payload)
        if any("Answer with the letter alone" in part for part in parts[-1:] if isinstance(part, str)):
            return self._oracle.odds(parts)
        return {"A": 0.5, "B": 0.5}

    def _parts(self, payload: Mapping[str, Any]) -> list[str | bytes]:
        content = payload["messages"][-1]["content"]
        if isinstance(content, str):
            return [content]
        return [part["text"] if part["type"] == "text" else self._picture(part) for part in content]

    def _picture(self, part: Mapping[str, Any]) -> bytes:
        """Returns the PNG of a part. Raises KeyError for an id that was never sent."""
        id_ = part.get("uuid")
        if part.get("image_url") is None:
            return self._pictures[str(id_)]
        png = base64.b64decode(part["image_url"]["url"].partition(",")[2])
        # From now on the client may send the id alone.
        if id_:
            self._pictures[str(id_)] = png
        return png
