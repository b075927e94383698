"""Finds out at start what a model server can do, by asking it for each thing once, as small as can be.

What it can't do is told in sentences for whoever starts the court, each with how the court gets along without it.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from court.backends.chat.client import ChatCompletions
from court.backends.chat.features import REPETITION, THOUGHT_LIMITS, Capabilities, LogProbs, Thinking, weakest
from court.backends.chat.wire import ListedModels, ServerAnswer
from court.errors import ModelRefused, Overrun, Unavailable
from court.meme import Frame
from court.ports import ChatRequest, FinishReason

_BARE = Capabilities(json_schema=False, pictures=0)
_HELLO = ChatRequest(system="You answer briefly.", parts=("Say hello.",), reply_schema=None, max_tokens=1)
_THOUGHT = 256
"""Tokens in which a thought about a greeting shows that it is one: where a template has opened it, by its end alone."""
_SHORT_THOUGHT = 8
_RANK = 7  # any but 0, which servers without ranks take too
_WORD = "zebra-7"  # what nobody answers to a greeting who does not keep to the schema
_SCHEMA = {
    "type": "object",
    "properties": {"word": {"type": "string", "enum": [_WORD]}},
    "required": ["word"],
    "additionalProperties": False,
}
_GREY = Frame(
    # A grey square of 64 x 64 pixels: no encoder takes much less.
    png=base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAEAAAABACAIAAAAlC+aJAAAATUlEQVR42u3PQQ0AAAgEIDX5RTeFDzdoQCepz6aeExAQEBAQEBAQEBAQEBAQ"
        "EBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQELi3oiwCAJt186UAAAAASUVORK5CYII="
    ),
    width=64,
    height=64,
)


@dataclass(frozen=True, slots=True)
class Probed:
    """Findings of a start check of a model server.

    Attributes:
        capabilities: Capabilities of the server, which the model has from now on.
        sentences: One sentence for each missing capability and its consequence for the court; empty if nothing is
            missing.
    """

    capabilities: Capabilities
    sentences: tuple[str, ...]


async def probe(model: ChatCompletions, *, pictures: int = 4, within_s: float = 60.0, thoughts: bool = False) -> Probed:
    """Finds out what the server behind a model can do, and sets the model's capabilities to it.

    Args:
        model: Nothing else should be asked of it meanwhile.
        pictures: Largest number of pictures that one of our prompts shows.
        within_s: Seconds that one request may take; the first may have to wait for the server to warm up.
        thoughts: True to find out as well how the model is made to think before its reply, and how that is limited.

    Raises:
        ModelRefused: The server does not have the model, or wants another key.
        Unavailable: The server does not answer, or stopped answering meanwhile.
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
    # Long enough to see a thought: with a single token, a model that thinks could not be told from one that does not.
    reply = await _greeted(model, replace(_HELLO, max_tokens=_THOUGHT), within_s)
    found = replace(model.capabilities, cached_tokens=reply.cached_tokens is not None)
    try:
        if reply.thinks:
            # Before the other probes: a thought would use up the few tokens of their replies.
            found = await _without_thoughts(model, found, within_s)
        # The order matters for ids of pictures, which are tried only where pictures are taken.
        for check in (_json_schema, _pictures, _log_probs, _picture_ids, _prefix_cache, _loops, _penalties):
            found = await check(model, found, pictures, within_s)
        if listed is not None and listed.is_vllm:
            found = await _priorities(model, found, within_s)
            if not found.priorities:
                sentences.append(
                    "It serves requests as they come: a batch holds up who waits for one verdict. Start vLLM with "
                    "--scheduling-policy priority."
                )
        if thoughts:
            found = await _thoughts(model, found, within_s)
    finally:
        # Also when a probe raises: the model must not go on with a capability that was only being tried.
        model.capabilities = found
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

    One of several is enough: those that do not answer are taken to be like the others, and asked as calls go by.

    Args:
        models: The model, bound to one server each, in the order in which they are asked.
        pictures: Largest number of pictures that one of our prompts shows.
        tell: Is told which servers do not answer, and what the others can't do.
        reach: Probes one; None for :func:`probe`.
        thoughts: True where the model is to think before its replies; for :func:`probe`.

    Raises:
        ModelRefused: A server does not have the model, or wants another key.
        Unavailable: None of the servers answers; the message names them.
    """
    reached, away = [], []
    for number, model in enumerate(models, 1):
        which = f" ({number} of {len(models)})" if len(models) > 1 else ""
        tell(f"Asking the model server for {model.name}{which} what it can do …")
        try:
            found = await (reach(model, pictures) if reach else probe(model, pictures=pictures, thoughts=thoughts))
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


async def _listed(model: ChatCompletions, within_s: float) -> ListedModels | None:
    try:
        return await model.listed(within_s=within_s)
    except ModelRefused as error:
        # A wrong key fails everywhere. Any other refusal only means that this server has no list.
        if error.reason == "MODEL_UNAUTHORISED":
            raise
        return None


async def _greeted(model: ChatCompletions, hello: ChatRequest, within_s: float) -> ServerAnswer:
    """The answer to a greeting, which needs no feature; sets in which form the server takes limit and temperature."""
    refused: ModelRefused | None = None
    # Everything else is off at first: a field that the server does not know could make it refuse the greeting.
    for form in (
        _BARE,
        replace(_BARE, completion_limit=True),
        replace(_BARE, completion_limit=True, temperatures=False),
    ):
        model.capabilities = form
        try:
            return await model.answer(hello, within_s=within_s)
        except ModelRefused as error:
            # Another form mends neither a wrong key nor a model that is not there.
            if error.status not in (400, 422):
                raise
            # The first counts: where no form is taken, it is about the one that nearly all servers take.
            refused = refused or error
    assert refused is not None, "each form was refused"
    raise refused


async def _without_thoughts(model: ChatCompletions, found: Capabilities, within_s: float) -> Capabilities:
    """Finds the field by which a model that thinks before it replies is told not to."""

    async def replies_at_once() -> bool:
        return not (await model.answer(replace(_HELLO, max_tokens=_THOUGHT), within_s=within_s)).thinks

    for how in (Thinking.TEMPLATE, Thinking.EFFORT):
        model.capabilities = replace(found, thinking=how)
        if await _can(model, replies_at_once, within_s):
            return model.capabilities
    return replace(found, thinking=Thinking.ALWAYS)


async def _thoughts(model: ChatCompletions, found: Capabilities, within_s: float) -> Capabilities:
    """Finds the switch by which the model thinks before a reply as we ask for it, and the limit of such a thought.

    With a schema, for a server that has no reasoning parser holds the schema against thoughts too.
    """
    request = replace(_HELLO, reply_schema=_SCHEMA, max_tokens=64, thought_tokens=_THOUGHT)
    thought = ""

    async def thinks() -> bool:
        nonlocal thought
        answer = await model.answer(request, within_s=within_s)
        thought = answer.split_thought[0]
        return answer.thinks

    # Where a switch turns thoughts off, the same one turns them on.
    for how in (Thinking.TEMPLATE, Thinking.EFFORT) if found.thinking is Thinking.NONE else (found.thinking,):
        model.capabilities = replace(found, thinks_by=how)
        if await _can(model, thinks, within_s):
            found = model.capabilities
            break
    else:
        return found

    # As many tokens in all as before, so that a thought is not shorter for being cut.
    limited = replace(request, max_tokens=64 + _THOUGHT - _SHORT_THOUGHT, thought_tokens=_SHORT_THOUGHT)

    async def is_shorter() -> bool:
        answer = await model.answer(limited, within_s=within_s)
        # By half, for thoughts about the same greeting differ in length by themselves.
        return 2 * len(answer.split_thought[0]) < len(thought)

    for field in THOUGHT_LIMITS:
        model.capabilities = replace(found, thought_limit=field)
        if await _can(model, is_shorter, within_s):
            return model.capabilities
    return found


async def _priorities(model: ChatCompletions, found: Capabilities, within_s: float) -> Capabilities:
    """True if a vLLM takes ranks. Others are not asked: elsewhere the highest rank may come first.

    Without its priority policy an old one refuses any but 0; later ones pass over them.
    """
    model.capabilities = replace(found, priorities=True)
    can = await _can(model, partial(model.answer, replace(_HELLO, priority=_RANK), within_s=within_s), within_s)
    return replace(found, priorities=can)


async def _loops(model: ChatCompletions, found: Capabilities, _: int, within_s: float) -> Capabilities:
    """True if the server takes our definition of a loop, and refuses one that makes no sense: others read neither."""

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
    model.capabilities = replace(found, ends_loops=True)
    can = await _can(model, partial(model.answer, _HELLO, within_s=within_s), within_s)
    return replace(found, ends_loops=can)


async def _penalties(model: ChatCompletions, found: Capabilities, _: int, within_s: float) -> Capabilities:
    model.capabilities = replace(found, penalties=True)
    request = replace(_HELLO, avoid_repetition=True)
    can = await _can(model, partial(model.answer, request, within_s=within_s), within_s)
    return replace(found, penalties=can)


async def _json_schema(model: ChatCompletions, found: Capabilities, _: int, within_s: float) -> Capabilities:
    async def follows_schema() -> bool:
        reply = await model.reply(replace(_HELLO, reply_schema=_SCHEMA, max_tokens=64), within_s=within_s)
        # A reply that runs to the limit has not kept to a schema that allows eight letters.
        if reply.finish is not FinishReason.STOP:
            return False
        try:
            return bool(json.loads(reply.text) == {"word": _WORD})
        except ValueError:
            return False

    model.capabilities = replace(found, json_schema=True)
    return replace(found, json_schema=await _can(model, follows_schema, within_s))


async def _pictures(model: ChatCompletions, found: Capabilities, wanted: int, within_s: float) -> Capabilities:
    # The most first: nearly every server takes all or none, and is done after one request or a few.
    for count in (wanted, *(n for n in (4, 2, 1) if n < wanted)):
        request = replace(_HELLO, parts=(*[_GREY] * count, *_HELLO.parts))
        model.capabilities = replace(found, pictures=count)
        if await _can(model, partial(model.reply, request, within_s=within_s), within_s):
            return model.capabilities
    return found


async def _log_probs(model: ChatCompletions, found: Capabilities, _: int, within_s: float) -> Capabilities:
    # The better one first: with it an option need not be among the likeliest tokens to have its true mass.
    for how in (LogProbs.CHOSEN, LogProbs.TOP):
        model.capabilities = replace(found, log_probs=how)
        if await _can(model, partial(_has_odds, model, within_s), within_s):
            return model.capabilities
    return found


async def _has_odds(model: ChatCompletions, within_s: float) -> bool:
    odds = await model.odds(_HELLO, ("A", "B"), within_s=within_s)
    return odds is not None and bool(odds.masses)


async def _picture_ids(model: ChatCompletions, found: Capabilities, _: int, within_s: float) -> Capabilities:
    """True if the server caches pictures by our ids.

    A server that accepts an id it can't know would judge without the picture: that one must answer 400, or ids are not
    used at all.
    """
    if found.pictures < 1:
        return found
    # Another picture than the one above, as far as its digest goes: bytes after the end of a PNG are not looked at.
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
    """Sends a new prompt twice, to see whether the prefix cache finds it the second time.

    It is longer than the blocks of any cache that is known: those of models with linear attention have up to 1,056
    tokens. SGLang tells of cached tokens only where there are some: where neither answer does, nothing is known.
    """
    model.capabilities = found
    # New each time: an earlier start may have left the same numbers in the cache.
    prompt = f"{secrets.token_hex(8)} {' '.join(map(str, range(1000)))}"
    request = replace(_HELLO, parts=(prompt, *_HELLO.parts))

    cached: list[int | None] = []

    async def finds() -> bool:
        for _ in range(2):
            cached.append((await model.answer(request, within_s=within_s)).cached_tokens)
        return bool(cached[-1])

    finds_it = await _can(model, finds, within_s)
    tells = found.cached_tokens or any(count is not None for count in cached)
    return replace(found, cached_tokens=tells, prefix_cache=finds_it if tells else None)


async def _can(model: ChatCompletions, ask: Callable[[], Awaitable[object]], within_s: float) -> bool:
    """True if the server can do something.

    Raises:
        Unavailable: The server is too busy to tell, or no longer there.
        ModelRefused: The server no longer accepts our key.
    """
    try:
        return bool(await ask())
    except Overrun:
        # A subclass of Unavailable that says nothing about the feature: being slow is not lacking it.
        raise
    except ModelRefused as error:
        if error.reason == "MODEL_UNAUTHORISED":
            raise
        return False
    except Unavailable as error:
        if error.reason == "MODEL_BUSY":
            raise
        # Some servers answer 500 to what they lack. Those that are still there can't do it; the others are gone.
        await _still_there(model, within_s)
        return False


async def _still_there(model: ChatCompletions, within_s: float) -> None:
    # Asked bare: with the feature that has just failed, the greeting would fail for the same reason.
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
        # Said of the roles, for the same model may be wanted with thoughts in one and without in another.
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
