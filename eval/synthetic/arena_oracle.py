"""The part of a model of known strength in an arena: its answers, and its verdicts as a judge.

An answer states its author's strength; a judge reads both and prefers the better one with the probability of the
Bradley-Terry model, so that the ratings that an arena must come to are known.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eval.datasets.items import Level
from eval.synthetic.world import level_of, read_badge

_MARK = re.compile(r"\[(begin|end) \w+\]")
_ANSWER = re.compile(r"strength (-?[\d.]+) by (\w+)")
_BACKGROUND = re.compile(r"background is (\w+) to this")
MERGED = "merged from several views"


@dataclass(frozen=True, slots=True)
class ArenaVoice:
    """A model of an arena."""

    name: str
    strength: float
    favours: float = 0.0
    """Lead that it gives its own answers as a judge whose reference is its own answer."""
    unaided: float = 1.0
    varied: bool = False
    """Whether each person's question is another one: judges draw alike for the same."""
    detects: float = 0.8
    """Share of memes that it labels correctly; its server has to be sent every picture."""

    def answer(self, payload: Mapping[str, Any]) -> str | None:
        """Returns the reply to a chat completion; None if it is not part of an arena."""
        schema = (payload.get("response_format") or {}).get("json_schema", {}).get("schema", {})
        content = payload["messages"][-1]["content"]
        parts = [content] if isinstance(content, str) else [part.get("text", "") for part in content]
        # Marks are random for each store of calls: replies that depend on them would differ from run to run.
        words, wanted = _MARK.sub("", "\n".join(parts)), schema.get("properties", {})
        if set(wanted) == {"label"}:
            shown = next((part["image_url"]["url"] for part in content if part["type"] == "image_url"), "")
            harmful = level_of(words, read_badge(base64.b64decode(shown.partition(",")[2]))) is not Level.NOT_HARMFUL
            right = _chance(self.name, "label", words) < self.detects
            return json.dumps({"label": "harmful" if harmful is right else "not harmful"})
        reply = self._reply(words, wanted)
        return None if reply is None else json.dumps(reply)

    def _reply(self, words: str, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
        own = f"It is explained with strength {self.strength:.3f} by {self.name}."
        fields = set(wanted)
        if fields == {"high", "moderate", "unrelated"}:
            return {kind: f"A person whose background is {kind} to this." for kind in wanted}
        if fields == {"question"}:
            kind = _BACKGROUND.search(words) if self.varied else None
            return {"question": f"Whom could this meme harm, and by what{', ' + kind[1] if kind else ''}?"}
        if fields == {"answer"}:
            return {"answer": own}
        if fields == {"background_knowledge", "reasoning"}:
            # To be merged are two texts; the question has none.
            fused = len(_ANSWER.findall(words)) + words.count(MERGED) > 1
            return {"background_knowledge": "It is about tea.", "reasoning": f"It is {MERGED}." if fused else own}
        if "overall" in fields:
            return self._verdicts(words, wanted)
        return None

    def _verdicts(self, words: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
        before, shown = words.split("Answer A.")[:2]
        (a, voice_a), (b, voice_b) = _ANSWER.findall(shown.split("Compare A and B")[0])[:2]
        lead = (float(a) - float(b)) * (1.0 if MERGED in before else self.unaided)
        # Only where its own answer is the reference it takes sides.
        if f"by {self.name}" in before:
            lead += self.favours * ((voice_a == self.name) - (voice_b == self.name))
        reply: dict[str, Any] = {"why": "One explains more than the other."}
        for name, schema in wanted.items():
            if "enum" not in schema:
                # Its own answer, where it writes one first.
                reply.setdefault(name, "It is explained by the judge.")
            else:
                # The same draw under every reference, so that they differ by what a judge sees in them alone.
                drawn = _chance(self.name, name, before.split("A reference.")[0], shown)
                winner = "A" if drawn < 1 / (1 + math.exp(-lead)) else "B"
                five = {"A": "A>>B" if lead > 1 else "A>B", "B": "B>>A" if lead < -1 else "B>A"}
                reply[name] = five[winner] if "A>>B" in schema["enum"] else winner
        return reply


def _chance(*what: str) -> float:
    """Returns a number in [0, 1) that is a function of its arguments."""
    return int.from_bytes(hashlib.sha256("\0".join(what).encode()).digest()[:8], "big") / 2**64
