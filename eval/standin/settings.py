"""Behaviour of a fake model server, and its counters."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

FEATURES = frozenset(
    {
        *("json_schema", "log_probs", "chosen_log_probs", "picture_ids", "cached_tokens", "prefix_cache"),
        *("priorities", "thought_limit", "repetition_detection", "penalties"),
    }
)
"""Optional features; any may be left out, to imitate a less capable server."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Behaviour of the fake server."""

    model: str = "stand-in"
    # Clients recognise vLLM by this value.
    owned_by: str = "vllm"
    """Kind of server that it claims to be."""
    api_key: str | None = None
    features: frozenset[str] = FEATURES
    """Which of :data:`FEATURES` it has."""
    ignores_schemas: bool = False
    """Without ``json_schema``: whether it ignores schemas instead of refusing them."""
    pictures: int = 16
    picture_tokens: int = 64
    context: int = 32_768
    """Maximum number of tokens of prompt and reply together."""
    call_s: float = 0.0
    prompt_token_s: float = 0.0
    """Time of every prompt token that is not in the prefix cache, in seconds."""
    output_token_s: float = 0.0
    """Time of every token of a reply, in seconds."""
    capacity: int = 1024
    """Concurrent calls that it works on; further calls wait."""
    queue: int = 100_000
    """Calls that may wait; one more is answered 503."""
    words: int = 20
    play: str = ""
    """Script of its replies, instead of random ones: ``rounds`` for :mod:`eval.standin.replies`, ``synthetic`` for the
    oracle of :mod:`eval.synthetic`; empty for none."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """See :class:`~eval.standin.replies.ReplyMaker`."""
    thinks: str = ""
    """Thoughts before each reply, as newer models have: "" for none, ``always``, or the name of the switch that turns
    them off, ``template`` or ``effort``; ``asked`` for a model that thinks if its template is told to."""
    reasoning_parser: bool = True
    """True to return thoughts separately from replies; else they precede the reply, in tags."""
    odds: Mapping[str, float] = field(default_factory=lambda: {"A": 0.6, "B": 0.3})
    """Probability of first tokens, for calls that ask for log-probabilities."""
    seed: int = 0
    faults: Sequence[str] = ()
    """Faults by rate, in the notation of :mod:`eval.standin.faults`."""
    script: Sequence[str] = ()


@dataclass(slots=True)
class Stats:
    """Counters of the fake server."""

    calls: int = 0
    answered: int = 0
    """Number of calls whose answer was sent completely."""
    refused: int = 0
    """Number of calls answered with an error, faults included."""
    disconnects: int = 0
    """Number of calls whose client disconnected before the answer was sent completely."""
    waiting: int = 0
    running: int = 0
    max_running: int = 0
    pictures_sent: int = 0
    """Pictures whose bytes were sent."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Number of those found in the prefix cache."""
    output_tokens: int = 0


def parsed(arguments: Sequence[str] | None) -> tuple[Settings, int]:
    """Parses settings and port from the command line."""
    parser = argparse.ArgumentParser(description="A stand-in for a model server.")
    defaults = Settings()
    parser.add_argument("--port", type=int, default=0, help="0 for a free one")
    parser.add_argument("--model", default=defaults.model)
    parser.add_argument("--capacity", type=int, default=defaults.capacity, help="calls that it works on at a time")
    for name in ("call_s", "prompt_token_s", "output_token_s"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=0.0, help="in seconds")
    parser.add_argument("--api-key")
    parser.add_argument(
        "--play",
        nargs="?",
        const="rounds",
        default="",
        choices=["rounds", "synthetic"],
        help="the part of all models: in a trial of known length, or of known ability on synthetic memes",
    )
    parser.add_argument("--fault", action="append", default=[], dest="faults", help="KIND[:SECONDS][@RATE]")
    values = vars(parser.parse_args(arguments))
    port = values.pop("port")
    return Settings(**values), port
