"""The part of all models in a trial whose length is known beforehand: so many rounds, so many tokens a reply.

How many rounds is read off the meme's text, ``… in 6 rounds``: summaries change until the last but one and stay the
same afterwards, which is what ends an examination. A stand-in server plays it where it is told to (``--play``), so that
trials of different lengths can be held before the same server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from eval.perf.stand_in_model import tokens_of

TOKENS: Mapping[str, int] = {"describe": 150, "ask": 30, "answer": 40, "summarise": 150, "judge": 250}
"""Of each reply, its JSON included."""
_ANSWERED = "witnessed"  # stands once in every answer, and nowhere else
_ROUNDS = re.compile(r"in (\d+) rounds")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def meme_text(name: str, rounds: int) -> str:
    """The text of a meme that is tried in so many rounds."""
    return f"The meme {name} is tried in {rounds} rounds"


def play(payload: Mapping[str, Any]) -> str | None:
    """The reply to a chat completion; None for what is no part of a full trial."""
    words = _words(payload)
    wanted = (payload.get("response_format") or {}).get("json_schema", {}).get("schema", {}).get("properties", {})
    if "question" in wanted:
        return _long("ask", lambda filler: json.dumps({"question": f"What is there that{filler}?"}))
    if "summary" in wanted:
        named = _ROUNDS.search(words)
        rounds, heard = int(named[1]) if named else 1, words.count(_ANSWERED)
        # Two letters more a round until the last but one, so that the last is the first that brings nothing new.
        known = _LETTERS[: 2 * min(heard, rounds - 1) + 2]
        return _long(
            "summarise", lambda filler: json.dumps({"summary": known, "justification": f"It is shown that{filler}."})
        )
    if "harmful_strength" in wanted:
        return _long("judge", lambda filler: json.dumps(_ruling(wanted, f"It is found that{filler}.")))
    if "answer" in wanted:
        return _long("answer", lambda filler: json.dumps({"answer": f"It is {_ANSWERED} that{filler}."}))
    if "description" in wanted:
        return _long("describe", lambda filler: json.dumps({"description": f"It is seen that{filler}."}))
    return None


def _long(task: str, make: Callable[[str], str]) -> str:
    """A reply that is filled up to the length of the task."""
    return make(" so" * (TOKENS[task] - len(tokens_of(make("")))))


def _words(payload: Mapping[str, Any]) -> str:
    content = payload["messages"][-1]["content"]
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


def _ruling(wanted: Mapping[str, Any], rationale: str) -> dict[str, Any]:
    """A ruling in the words that the schema allows, harmful and in keeping with itself."""
    first = {name: wanted[name]["enum"][0] for name in ("category", "clause", "target")}
    return {
        "harmful_evidence": ["It is said in so many words."],
        "harmless_evidence": [],
        "precedents": dict.fromkeys(wanted["precedents"]["properties"], "harmful"),
        "harmful_strength": "strong",
        "harmless_strength": "weak",
        "label": "harmful",
        **first,
        "rationale": rationale,
    }
