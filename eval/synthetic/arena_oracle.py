"""The part of a model of known strength in an arena: its answers, and its verdicts as a judge.

An answer states its author's strength; a judge reads both and prefers the better one with the probability of the
Bradley-Terry model, so that the ratings that an arena must come to are known.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eval.datasets.items import Level
from eval.synthetic.messages import chance_of, parts_of, picture_in, texts_of, wanted_by
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
    """Share of memes that it labels correctly."""

    def answer(self, payload: Mapping[str, Any]) -> str | None:
        """Returns the reply to a chat completion; None if it is not part of an arena."""
        # Marks are random for each store of calls: replies that depend on them would differ from run to run.
        words, wanted = _MARK.sub("", "\n".join(texts_of(payload))), wanted_by(payload)
        if set(wanted) == {"label"}:
            picture = next(picture_in(part) for part in parts_of(payload) if not isinstance(part, str))
            harmful = level_of(words, read_badge(picture)) is not Level.NOT_HARMFUL
            right = chance_of(self.name, "label", words) < self.detects
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
                drawn = chance_of(self.name, name, before.split("A reference.")[0], shown)
                winner = "A" if drawn < 1 / (1 + math.exp(-lead)) else "B"
                five = {"A": "A>>B" if lead > 1 else "A>B", "B": "B>>A" if lead < -1 else "B>A"}
                reply[name] = five[winner] if "A>>B" in schema["enum"] else winner
        return reply
