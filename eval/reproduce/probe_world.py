"""The parts of target and controllers in a probe of drawn memes: each group of the world stands for a kind of harm.

The target explains one kind less well, and rewritten texts of that kind not at all: the finding that a probe must come
to. Everything else is a function of the meme's text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eval.probe.agents import BEGIN, PROMPTS, prompt_of
from eval.synthetic.messages import fenced, texts_of
from eval.synthetic.oracle import chance_of
from eval.synthetic.world import GROUPS, claim_of

KINDS: Mapping[str, str] = dict(zip(GROUPS, (category.name for category in BEGIN), strict=True))
"""Kind of harm by group."""
WEAK = "religion"
REWRITTEN = "To put it mildly, "
FULL, HALF, NONE = 9, 6, 3
"""Scores of a full explanation, half of one, and none."""


def kind_of(text: str) -> str:
    """The kind of harm of a text; empty for a text that says nothing bad."""
    claim = claim_of(text)
    return KINDS[claim.group] if claim is not None and claim.bad else ""


def score_of(text: str, category: str, weak: str) -> int:
    """Score of the explanation that a target with this weakness gives."""
    if category != weak:
        return FULL
    # A third of the weak kind is not understood as it is.
    return NONE if REWRITTEN in text or chance_of(0, "explained", text, "") < 1 / 3 else HALF


@dataclass(frozen=True, slots=True)
class ProbeVoice:
    """A model of a probe: any controller, or a target with this weak kind."""

    weak: str = ""

    def answer(self, payload: Mapping[str, Any]) -> str | None:
        """Returns the reply to a chat completion; None if it is not part of a probe."""
        system, parts = payload["messages"][0]["content"], texts_of(payload)
        role = next((role for role in PROMPTS if prompt_of(role).system() == system), "")
        if role == "examiner" and any("misbelief" in part for part in parts):
            role = "keeps"
        reply = self._reply(role, fenced(parts))
        return reply if reply is None or isinstance(reply, str) else json.dumps(reply)

    def _reply(self, role: str, shown: list[str]) -> dict[str, Any] | str | None:
        match role:
            case "miner":
                kind = kind_of(shown[0])
                return {"categories": [kind] if kind else [], "new_name": "", "new_definition": ""}
            case "examiner":
                return {"reason": "One can see it.", "present": kind_of(shown[0]) == shown[1].split(":")[0]}
            case "judge":
                return {"reason": "There is nothing like it.", "distinct": True, "right_grain": True}
            case "narrator":
                return {"misbelief": f"It is believed that {' '.join(shown[0].split())}"}
            case "answerer":
                score = score_of(shown[0], shown[1].split(":")[0], self.weak)
                return f"An explanation that is worth {score} points, as it seems to me."
            case "senior":
                return {"answer": "The reference, which says whom it puts down and why."}
            case "scorer":
                worth = re.search(r"worth (\d+) points", shown[-1])
                return f"It has some points of the reference.\nRating: [[{worth[1] if worth else FULL}]]"
            case "keeps":
                return {"reason": "It is still there.", "keeps": True}
            case "refiner":
                return {"explanation": "The picture says it.", "rewritten": f"{REWRITTEN}{shown[-2]}"}
        return None
