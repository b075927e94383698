"""Probes the capabilities of a model server at start, with one minimal request for each.

Missing capabilities are reported in sentences for the operator, each with its consequence.
"""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from court.backends.chat.client import ChatCompletions
from court.backends.chat.wire import (
    REPETITION,
    THOUGHT_LIMITS,
    Capabilities,
    ListedModels,
    LogProbs,
    ServerAnswer,
    Thinking,
    weakest,
)
from court.errors import ModelRefused, Overrun, Unavailable
from court.meme import Frame
from court.ports import ChatRequest, FinishReason, Speed

_BARE = Capabilities(json_schema=False, pictures=0)
_HELLO = ChatRequest(system="You answer briefly.", parts=("Say hello.",), reply_schema=None, max_tokens=1)
_THOUGHT = 256
"""Enough tokens for a complete thought about a greeting; one opened by the template is only detected by its end."""
_SHORT_THOUGHT = 8
_QUIET_S = 10.0
"""Seconds after which a probe tells how far it is."""
_SHORT_PREFIX, _LONG_PREFIX = 160, 1100
"""Tokens of prompts that fill a block of a prefix cache: most have 16 to 128 tokens, those of models with linear
attention up to 1,056."""
_COUNTED = 16
"""Tokens that are written to measure the speed of writing."""
_RANK = 7  # not 0, which servers without priorities accept too
_WORD = "zebra-7"  # not a natural reply to a greeting unless the schema is enforced
_SCHEMA = {
    "type": "object",
    "properties": {"word": {"type": "string", "enum": [_WORD]}},
    "required": ["word"],
    "additionalProperties": False,
}
_GREY = Frame(
    # A grey square of 64 x 64 pixels, about the minimum for encoders.
    png=base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAEAAAABACAIAAAAlC+aJAAAATUlEQVR42u3PQQ0AAAgEIDX5RTeFDzdoQCepz6aeExAQEBAQEBAQEBAQEBAQ"
        "EBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQELi3oiwCAJt186UAAAAASUVORK5CYII="
    ),
    width=64,
    height=64,
)


@dataclass(frozen=True, slots=True)
class Probed:
    """Capabilities of a model server, and a sentence for each missing one with its consequence."""

    capabilities: Capabilities
    sentences: tuple[str, ...]


async def probe(
    model: ChatCompletions,
    *,
    pictures: int = 4,
    within_s: float = 60.0,
    budget_s: float = 180.0,
    thoughts: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> Probed:
    """Probes the server of a model and sets the model's capabilities and speed.

    A check that the server is too slow or too busy for leaves its feature unused, and never ends the start.

    Args:
        budget_s: Seconds for the short greeting of a slow server, and from the first answer for all checks; later ones
            are left out.

    Raises:
        ModelRefused: The server does not have the model, or rejects the key.
        Unavailable: The server does not answer, or stopped answering.
    """
    sentences = []
    listed = await _listed(model, within_s)
    if listed is None:
        sentences.append("It does not list its models: whether it has ours shows when it is asked.")
    elif model.name not in listed.names:
        raise ModelRefused(
            "The model server does not list the model that it is asked for. Start it with that model, or name another.",
            reason="MODEL_UNKNOWN",
            status=404,
        )
    else:
        model.weights = listed.weights.get(model.name, "")
    # Long enough to detect a thought, which a single token would not show.
    try:
        reply = await _greeted(model, replace(_HELLO, max_tokens=_THOUGHT), within_s)
    except Overrun:
        # A server that works on other trials may take minutes for a single token.
        reply = await _greeted(model, _HELLO, budget_s)
        sentences.append("It is too slow to find out if the model thinks before it replies.")
    found = replace(model.capabilities, cached_tokens=reply.cached_tokens is not None)
    # The order matters: the few tokens of most checks would be used up by a thought, and picture ids are only probed if
    # pictures are accepted.
    checks = {
        "JSON schemas": _json_schema,
        "pictures": _pictures,
        "log-probabilities": _log_probs,
        "picture ids": _picture_ids,
        "prefix cache": _prefix_cache,
        "ends of loops": _loops,
        "penalties": _penalties,
    }
    if reply.thinks:
        found = replace(found, thinking=Thinking.ALWAYS)
        checks = {"ways not to think": _without_thoughts} | checks
    if listed is not None and listed.is_vllm:
        checks["priorities"] = _priorities
    if thoughts:
        checks["thoughts"] = _thoughts
    began, unknown, assumed = time.monotonic(), [], False
    try:
        for number, (name, check) in enumerate(checks.items(), 1):
            spent = time.monotonic() - began
            if spent > _QUIET_S:
                tell(f"… {name} ({number} of {len(checks)}, {spent:.0f} s so far)")
            try:
                found = await check(model, found, pictures, min(within_s, budget_s - spent))
            except Unavailable as error:
                # Slow and busy servers say nothing about the feature; one that is gone can't be used.
                if not isinstance(error, Overrun) and error.reason != "MODEL_BUSY":
                    raise
                # Every vLLM keeps replies to a schema, and without one the replies of small models can't be used.
                if check is _json_schema and listed is not None and listed.is_vllm:
                    found = replace(found, json_schema=True)
                    assumed = True
                else:
                    unknown.append(name)
    finally:
        # Also if a probe raises, so that the model does not keep a capability that was only being tested.
        model.capabilities = found
    if unknown:
        sentences.append(f"It is too slow or too busy to find out about its {', '.join(unknown)}: trials do without.")
    if assumed:
        sentences.append(
            "It did not show in time that it keeps replies to JSON schemas: every vLLM does, so it is asked to."
        )
    if listed is not None and listed.is_vllm and not found.priorities and "priorities" not in unknown:
        sentences.append(
            "It serves requests as they come: a batch holds up who waits for one verdict. Start vLLM with "
            "--scheduling-policy priority."
        )
    return Probed(found, (*sentences, *_limitations(found, pictures, thoughts=thoughts)))


async def probe_replicas(
    models: Sequence[ChatCompletions],
    *,
    pictures: int,
    tell: Callable[[str], None],
    reach: Callable[[ChatCompletions, int], Awaitable[Probed]] | None = None,
    thoughts: bool = False,
) -> ChatCompletions:
    """Probes a model at each of its servers, and returns it at all of them; what counts is what all of them can do.

    One reachable server is enough: others are assumed to be alike, and used once they answer.

    Raises:
        ModelRefused: A server does not have the model, or wants another key.
        Unavailable: No server answers; the message names them.
    """
    reached, away = [], []
    for number, model in enumerate(models, 1):
        which = f" ({number} of {len(models)})" if len(models) > 1 else ""
        tell(f"Asking the model server for {model.name}{which} what it can do …")
        try:
            found = await (
                reach(model, pictures) if reach else probe(model, pictures=pictures, thoughts=thoughts, tell=tell)
            )
        except Unavailable as error:
            tell(f"The model server {model.urls[0]} does not answer: {error.message}")
            away.append(model)
            continue
        for sentence in found.sentences:
            tell(f"{model.name}{which}: {sentence}")
        reached.append(model)
    if not reached:
        raise Unavailable(
            f"No model server for {models[0].name} answers: {', '.join(model.urls[0] for model in models)}. Start it, "
            "or name another.",
            reason="MODEL_GONE",
        )
    if len({model.capabilities for model in reached}) > 1:
        tell(f"{models[0].name}: its servers differ; each is asked only for what all of them can do.")
    if away:
        tell(f"{models[0].name}: {len(reached)} of {len(models)} servers answer; the others are asked once they do.")
    for model in away:
        model.capabilities = weakest([one.capabilities for one in reached])
    return ChatCompletions.joined(models)


def require_sight(model: ChatCompletions, who: str) -> None:
    """Raises ModelRefused if a model that is to see pictures takes none, as far as its checks could tell."""
    if not model.capabilities.pictures:
        raise ModelRefused(
            f"{who} must see pictures, and {model.name} takes none, or is too slow to find out. Name another model, or "
            "judge texts alone (trial.input).",
            reason="MODEL_BLIND",
        )


async def _listed(model: ChatCompletions, within_s: float) -> ListedModels | None:
    try:
        return await model.listed(within_s=within_s)
    except ModelRefused as error:
        # A wrong key fails everywhere. Any other rejection only means that this server has no list.
        if error.reason == "MODEL_UNAUTHORISED":
            raise
        return None


async def _greeted(model: ChatCompletions, hello: ChatRequest, within_s: float) -> ServerAnswer:
    """Sends a greeting without optional features, and finds the form of limit and temperature that is accepted."""
    refused: ModelRefused | None = None
    # Everything else is off, as an unknown field could make the server reject the greeting.
    for form in (
        _BARE,
        replace(_BARE, completion_limit=True),
        replace(_BARE, completion_limit=True, temperatures=False),
    ):
        model.capabilities = form
        try:
            return await model.answer(hello, within_s=within_s)
        except ModelRefused as error:
            # Another form does not fix a wrong key or a missing model.
            if error.status not in (400, 422):
                raise
            # The first rejection is reported, as it is about the form that nearly all servers accept.
            refused = refused or error
    assert refused is not None, "each form was refused"
    raise refused


async def _without_thoughts(model: ChatCompletions, found: Capabilities, _: int, within_s: float) -> Capabilities:
    async def replies_at_once() -> bool:
        return not (await model.answer(replace(_HELLO, max_tokens=_THOUGHT), within_s=within_s)).thinks

    switches = [replace(found, thinking=how) for how in (Thinking.TEMPLATE, Thinking.EFFORT)]
    return await _first(model, switches, replies_at_once, within_s) or replace(found, thinking=Thinking.ALWAYS)


async def _thoughts(model: ChatCompletions, found: Capabilities, _: int, within_s: float) -> Capabilities:
    """Finds the switch that turns on thinking, and the field that limits it."""
    # Uses a schema, because a server without a reasoning parser applies it to thoughts too.
    request = replace(_HELLO, reply_schema=_SCHEMA, max_tokens=64, thought_tokens=_THOUGHT)
    thought = ""

    async def thinks() -> bool:
        nonlocal thought
        answer = await model.answer(request, within_s=within_s)
        thought = answer.split_thought[0]
        return answer.thinks

    # The switch that turns thinking off also turns it on.
    ways = (Thinking.TEMPLATE, Thinking.EFFORT) if found.thinking is Thinking.NONE else (found.thinking,)
    switched = await _first(model, [replace(found, thinks_by=how) for how in ways], thinks, within_s)
    if switched is None:
        return found

    # The same total limit as before, so that a thought is not shorter because of truncation.
    limited = replace(request, max_tokens=64 + _THOUGHT - _SHORT_THOUGHT, thought_tokens=_SHORT_THOUGHT)

    async def is_shorter() -> bool:
        answer = await model.answer(limited, within_s=within_s)
        # By half, as thoughts about the same greeting vary in length.
        return 2 * len(answer.split_thought[0]) < len(thought)

    limits = [replace(switched, thought_limit=field) for field in THOUGHT_LIMITS]
    return await _first(model, limits, is_shorter, within_s) or switched


async def _priorities(model: ChatCompletions, found: Capabilities, _: int, within_s: float) -> Capabilities:
    """Probes if vLLM accepts priorities. Other servers are not probed, as the highest may come first there."""
    # Without the priority policy, old versions reject any priority but 0, and later ones ignore it.
    ask = partial(model.answer, replace(_HELLO, priority=_RANK), within_s=within_s)
    return await _first(model, [replace(found, priorities=True)], ask, within_s) or found


async def _loops(model: ChatCompletions, found: Capabilities, _: int, within_s: float) -> Capabilities:
    """Probes if the server accepts our definition of a loop and rejects an invalid one; others ignore both."""

    async def nonsense_refused() -> bool:
        nonsense = {"repetition_detection": {**REPETITION, "max_pattern_size": -1}}
        try:
            await model.answer(_HELLO, within_s=within_s, extra=nonsense)
        except ModelRefused as error:
            return error.status in (400, 422)
        return False

    model.capabilities = found
    if not await _can(model, nonsense_refused, within_s):
        return found
    ask = partial(model.answer, _HELLO, within_s=within_s)
    return await _first(model, [replace(found, ends_loops=True)], ask, within_s) or found


async def _penalties(model: ChatCompletions, found: Capabilities, _: int, within_s: float) -> Capabilities:
    ask = partial(model.answer, replace(_HELLO, avoid_repetition=True), within_s=within_s)
    return await _first(model, [replace(found, penalties=True)], ask, within_s) or found


async def _json_schema(model: ChatCompletions, found: Capabilities, _: int, within_s: float) -> Capabilities:
    async def follows_schema() -> bool:
        reply = await model.reply(replace(_HELLO, reply_schema=_SCHEMA, max_tokens=64), within_s=within_s)
        # A reply that reaches the limit has not followed a schema that allows only one short word.
        if reply.finish is not FinishReason.STOP:
            return False
        try:
            return bool(json.loads(reply.text) == {"word": _WORD})
        except ValueError:
            return False

    return await _first(model, [replace(found, json_schema=True)], follows_schema, within_s) or found


async def _pictures(model: ChatCompletions, found: Capabilities, wanted: int, within_s: float) -> Capabilities:
    # The largest number first, as nearly every server accepts all or none.
    for count in (wanted, *(n for n in (4, 2, 1) if n < wanted)):
        request = replace(_HELLO, parts=(*[_GREY] * count, *_HELLO.parts))
        model.capabilities = replace(found, pictures=count)
        if await _can(model, partial(model.reply, request, within_s=within_s), within_s):
            return model.capabilities
    return found


async def _log_probs(model: ChatCompletions, found: Capabilities, _: int, within_s: float) -> Capabilities:
    # The better one first, which gives an option's true mass even if it is not among the most likely tokens.
    ways = [replace(found, log_probs=how) for how in (LogProbs.CHOSEN, LogProbs.TOP)]

    async def has_odds() -> bool:
        odds = await model.odds(_HELLO, ("A", "B"), within_s=within_s)
        return odds is not None and bool(odds.masses)

    return await _first(model, ways, has_odds, within_s) or found


async def _picture_ids(model: ChatCompletions, found: Capabilities, _: int, within_s: float) -> Capabilities:
    """Probes if the server caches pictures by our ids."""
    # A server that accepts an unknown id would judge without the picture, so ids are only used if it answers 400.
    if found.pictures < 1:
        return found
    # A picture with a new digest: bytes after the end of a PNG are ignored.
    fresh = replace(_GREY, png=_GREY.png + secrets.token_bytes(8))
    model.capabilities = replace(found, picture_ids=True)

    async def unknown_refused() -> bool:
        try:
            await model.answer_by_id(fresh, _HELLO, within_s=within_s)
        except ModelRefused as error:
            return error.status == 400
        return False

    async def known_taken() -> bool:
        request = replace(_HELLO, parts=(fresh, *_HELLO.parts))
        await model.answer(request, within_s=within_s)
        await model.answer_by_id(fresh, _HELLO, within_s=within_s)
        return True

    can = await _can(model, unknown_refused, within_s) and await _can(model, known_taken, within_s)
    return replace(found, picture_ids=can)


async def _prefix_cache(model: ChatCompletions, found: Capabilities, _: int, within_s: float) -> Capabilities:
    """Sends a new prompt twice to probe the prefix cache, and measures the speeds of reading and writing."""
    # A short prompt first, a longer one only for caches with larger blocks. SGLang only reports cached tokens if there
    # are some; without any report, the result is unknown.
    model.capabilities = found
    reported = found.cached_tokens

    async def finds(tokens: int) -> bool:
        nonlocal reported
        # Letters, a token each. Random first, as an earlier start may have left the same prompt in the cache.
        letters = " ".join("abcdefghijklmnopqrstuvwxyz"[i % 26] for i in range(tokens))
        request = replace(_HELLO, parts=(f"{secrets.token_hex(8)} {letters}", "Count to 50: 1, 2, 3,"))
        began = time.monotonic()
        first = await model.answer(request, within_s=within_s)
        read = time.monotonic()
        second = await model.answer(replace(request, max_tokens=_COUNTED), within_s=within_s)
        _measure(model, (first, read - began), (second, time.monotonic() - read))
        reported = reported or first.cached_tokens is not None or second.cached_tokens is not None
        return bool(second.cached_tokens)

    finds_it = await _can(model, partial(finds, _SHORT_PREFIX), within_s)
    # Pointless without reports, which are not found by asking for longer.
    if not finds_it and reported:
        finds_it = await _can(model, partial(finds, _LONG_PREFIX), within_s)
    return replace(found, cached_tokens=reported, prefix_cache=finds_it if reported else None)


def _measure(model: ChatCompletions, first: tuple[ServerAnswer, float], second: tuple[ServerAnswer, float]) -> None:
    read, written = (answer.usage for answer, _ in (first, second))
    if read and read.prompt_tokens and written and written.completion_tokens:
        # The first has one token to write, the second little to read: both are slight underestimates.
        model.speed = Speed(read.prompt_tokens / max(first[1], 1e-3), written.completion_tokens / max(second[1], 1e-3))


async def _first(
    model: ChatCompletions, choices: Sequence[Capabilities], ask: Callable[[], Awaitable[object]], within_s: float
) -> Capabilities | None:
    for choice in choices:
        model.capabilities = choice
        if await _can(model, ask, within_s):
            return model.capabilities
    return None


async def _can(model: ChatCompletions, ask: Callable[[], Awaitable[object]], within_s: float) -> bool:
    try:
        return bool(await ask())
    except Overrun:
        # A subclass of Unavailable, but a slow server need not be asked if it is still there.
        raise
    except ModelRefused as error:
        if error.reason == "MODEL_UNAUTHORISED":
            raise
        return False
    except Unavailable as error:
        if error.reason == "MODEL_BUSY":
            raise
        # Some servers answer 500 for missing features. If the server still answers, the feature is missing.
        await _still_there(model, within_s)
        return False


async def _still_there(model: ChatCompletions, within_s: float) -> None:
    # Without features: with the one that has just failed, the greeting would fail, too.
    before = model.capabilities
    model.capabilities = _BARE
    try:
        await model.reply(_HELLO, within_s=within_s)
    finally:
        model.capabilities = before


def _limitations(found: Capabilities, pictures: int, *, thoughts: bool) -> list[str]:
    sentences = []
    if not found.json_schema:
        sentences.append(
            "It does not keep replies to a JSON schema: the schema is told in words, and a reply that does not obey it "
            "is asked for once more, then recorded as a failed step."
        )
    if found.pictures == 0 and pictures:
        sentences.append("It takes no pictures: it can serve the advocates, but neither the Proposer nor the Judge.")
    elif found.pictures < pictures:
        sentences.append(
            f"It takes {found.pictures} of up to {pictures} pictures in one prompt: what does not fit is refused, "
            "never left out unsaid."
        )
    if found.log_probs is LogProbs.NONE and found.thinking is not Thinking.ALWAYS:
        sentences.append("It gives no log-probabilities: verdicts come without a harm score.")
    elif found.log_probs is LogProbs.TOP:
        sentences.append(
            "It gives log-probabilities of the most likely tokens only: a label that is not among them counts as 0 in "
            "the harm score."
        )
    if found.thinking is Thinking.ALWAYS:
        sentences.append(
            "The model thinks before it replies, and can't be told not to: replies take longer, and verdicts come "
            "without a harm score. Start the server with a reasoning parser for the model, so that thoughts are told "
            "apart, or take a model that does not think."
        )
    elif found.thinking is not Thinking.NONE:
        # Mentions roles, as the same model may think in one role and not in another.
        where = " in roles that are not to think" if thoughts else ""
        sentences.append(f"The model thinks before it replies; it is told not to{where}.")
    if not found.temperatures:
        sentences.append("It takes no temperature but 1: its replies are draws, and differ from trial to trial.")
    if found.prefix_cache is False:
        sentences.append(
            "Its prefix cache found nothing of a prompt that it had just read: every call reads the whole trial again. "
            "Start it with prefix caching (vLLM: --enable-prefix-caching; for a model with linear attention "
            "--mamba-cache-mode align as well), or take another model."
        )
    if not found.cached_tokens:
        sentences.append(
            "It does not tell how much of a prompt was in its cache: 0 is recorded. SGLang tells with "
            "--enable-cache-report."
        )
    return sentences
