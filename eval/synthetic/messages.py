"""Reading of requests, for stand-ins whose replies are a function of what they are shown."""

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

_FENCED = re.compile(r"\[begin (\w+)\]\n(.*?)\n\[end \1\]", re.DOTALL)


def chance_of(*what: str) -> float:
    """Returns a number in [0, 1) that is a function of its arguments, in every process and order of calls."""
    # The NUL distinguishes ("ab", "c") from ("a", "bc").
    return int.from_bytes(hashlib.sha256("\0".join(what).encode()).digest()[:8], "big") / 2**64


def wanted_by(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Properties of the reply that a chat completion asks for; none if it names no schema."""
    schema = (payload.get("response_format") or {}).get("json_schema", {}).get("schema", {})
    return dict(schema.get("properties", {}))


def parts_of(payload: Mapping[str, Any]) -> list[str | Mapping[str, Any]]:
    """Parts of the last message of a chat completion: texts, and pictures as they were sent."""
    content = payload["messages"][-1]["content"]
    if isinstance(content, str):
        return [content]
    return [part["text"] if part["type"] == "text" else part for part in content]


def texts_of(payload: Mapping[str, Any]) -> list[str]:
    """Texts of the parts of the last message of a chat completion; a picture has an empty one."""
    return [part if isinstance(part, str) else "" for part in parts_of(payload)]


def picture_in(part: Mapping[str, Any]) -> bytes:
    """Bytes of a picture that was sent along."""
    return base64.b64decode(part["image_url"]["url"].partition(",")[2])


def fenced(texts: Iterable[str]) -> list[str]:
    """The texts between marks, in order; the end of one has to have the mark of its beginning."""
    # Clients may join adjacent texts: part boundaries mean nothing.
    return [found[2] for found in _FENCED.finditer("\n\n".join(texts))]


def argument(wanted: Mapping[str, Any], summary: str, reason: str, *, quote: str, because: str) -> dict[str, Any]:
    """A side's argument, in parts where the schema has them."""
    if "summary" in wanted:
        return {"summary": summary, "justification": reason}
    return {"quotes": [quote], "conclusion": wanted["conclusion"]["enum"][0], "because": because}


def ruling(wanted: Mapping[str, Any], why: str, *, harmful: bool, strong: str, **named: str) -> dict[str, Any]:
    """A ruling of the Judge that agrees with itself.

    Args:
        strong: Strength of the evidence for harm, if it is harmful.
        named: Category, clause and target, in place of the first that the policy has.
    """
    return {
        "harmful_evidence": ["The words are about those who are shown."] if harmful else [],
        "harmless_evidence": [] if harmful else ["Nobody who is shown is attacked."],
        "precedents": dict.fromkeys(wanted["precedents"]["properties"], "harmful" if harmful else "harmless"),
        "harmful_strength": strong if harmful else "weak",
        "harmless_strength": "weak" if harmful else "strong",
        "label": "harmful" if harmful else "not harmful",
        **{name: named.get(name, wanted[name]["enum"][0]) for name in ("category", "clause", "target")},
        "rationale": why,
    }
