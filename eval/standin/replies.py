"""Replies of a fake model server: text, instances of JSON schemas, log-probabilities, and its prefix cache.

Its tokens are words. The same prompt and seed always give the same reply, regardless of the order of calls.
"""

import hashlib
import json
import math
import random
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from eval.synthetic.messages import argument, ruling, texts_of, wanted_by

BLOCK = 16
"""Tokens of a block of the prefix cache."""
_WORDS = (
    *("a", "an", "the", "of", "in", "on", "with", "two", "three", "small", "large", "red", "blue", "green", "old"),
    *("new", "quiet", "bright", "figure", "table", "lamp", "river", "window", "garden", "letter", "bridge", "basket"),
    *("stands", "holds", "shows", "reads", "looks", "turns", "beside", "above", "under", "behind", "and", "but"),
)
_NAME_CHARS, _NAME_WORDS = 40, 3
"""Length up to which a string is a name, and its words."""
_RATING = "Rating : [ ["
"""Beginning of a rating's format, as tokens."""
_TOKEN = re.compile(r"\w+|[^\w\s]")


def tokens_of(text: str) -> list[str]:
    """Splits a text into its tokens: words and punctuation marks."""
    return _TOKEN.findall(text)


def token_id(token: str) -> int:
    """Returns the id of a token."""
    # Within the size of a typical vocabulary.
    return int.from_bytes(hashlib.sha256(token.encode()).digest()[:4], "big") % 150_000


def prompt_tokens(messages: Sequence[Mapping[str, Any]], picture_tokens: int) -> list[str]:
    """Returns the tokens of a prompt; a picture becomes ``picture_tokens`` tokens made from its digest.

    Raises ValueError: The messages do not follow the API.
    """
    tokens: list[str] = []
    for message in messages:
        # A marker for each role, as in chat templates.
        tokens.append(f"<{message['role']}>")
        content = message["content"]
        for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            if part["type"] == "text":
                tokens += tokens_of(part["text"])
            elif part["type"] == "image_url":
                tokens += [f"<picture {picture_digest(part)}>"] * picture_tokens
            else:
                raise ValueError("neither text nor picture")
    return tokens


def picture_digest(part: Mapping[str, Any]) -> str:
    """Returns an identifier of a picture: its id if it has one, else a digest of its bytes."""
    if part.get("uuid"):
        return str(part["uuid"])
    # The URL contains the picture's bytes, so this is a digest of them.
    return hashlib.sha256(part["image_url"]["url"].encode()).hexdigest()


class PrefixCache:
    """Remembers the beginnings of prompts, block by block; evicts the least recently used."""

    def __init__(self, blocks: int = 100_000, *, block: int = BLOCK) -> None:
        self._room = blocks
        self._block = block
        self._blocks: OrderedDict[bytes, None] = OrderedDict()

    def cached(self, tokens: Sequence[str]) -> int:
        """Counts the cached tokens at the beginning. Never all of them: the last is always computed."""
        count = 0
        for key in self._chain(tokens[:-1]):
            if key not in self._blocks:
                break
            self._blocks.move_to_end(key)
            count += self._block
        return count

    def keep(self, tokens: Sequence[str]) -> None:
        """Remembers the full blocks of a prompt."""
        for key in self._chain(tokens):
            self._blocks[key] = None
            self._blocks.move_to_end(key)
        while len(self._blocks) > self._room:
            self._blocks.popitem(last=False)

    def _chain(self, tokens: Sequence[str]) -> list[bytes]:
        """Returns a key for each full block that identifies it together with all blocks before it."""
        keys, before = [], b""
        for start in range(0, len(tokens) - self._block + 1, self._block):
            # The NUL keeps adjacent tokens apart.
            block = "\0".join(tokens[start : start + self._block]).encode()
            before = hashlib.blake2b(before + block, digest_size=16).digest()
            keys.append(before)
        return keys


class ReplyMaker:
    """Generates replies."""

    def __init__(self, *, seed: int = 0, words: int = 20, values: Mapping[str, Any] | None = None) -> None:
        """Sets the style of the replies.

        Args:
            values: Values of properties by name, wherever they are in a schema, e.g. ``{"harmful": "WEAK"}``; ignored
                if they are not among those that the schema lists.
        """
        self._seed = seed
        self._words = words
        self._values = dict(values or {})

    def text(self, prompt: Sequence[str]) -> str:
        """Generates a reply; it ends with a rating if the prompt asks for one in double square brackets."""
        rng = self._random(prompt)
        sentence = self._sentence(rng, self._words)
        return f"{sentence} Rating: [[{rng.randint(1, 10)}]]" if _RATING in " ".join(prompt) else sentence

    def instance(self, prompt: Sequence[str], schema: Mapping[str, Any]) -> str:
        """Generates a reply that obeys a schema, as compact JSON. Raises ValueError: A type is not supported."""
        value = self._value(schema, self._random(prompt))
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    def _random(self, prompt: Sequence[str]) -> random.Random:
        digest = hashlib.blake2b("\0".join(prompt).encode(), digest_size=16).hexdigest()
        return random.Random(f"{self._seed} {digest}")

    def _sentence(self, rng: random.Random, words: int) -> str:
        return " ".join(_english([rng.choice(_WORDS) for _ in range(words)]))

    def _value(self, schema: Mapping[str, Any], rng: random.Random) -> Any:
        if "enum" in schema:
            return schema["enum"][0]
        match kind := schema.get("type"):
            case "object":
                # All properties, also optional ones: strict mode requires them.
                return {name: self._property(name, part, rng) for name, part in schema.get("properties", {}).items()}
            case "array":
                # One element even if none is required, so that code that reads elements is exercised.
                least = max(schema.get("minItems", 0), min(1, schema.get("maxItems", 1)))
                return [self._value(schema.get("items", {"type": "string"}), rng) for _ in range(least)]
            case "string":
                return self._string(schema, rng)
            case "integer" | "number":
                low, high = schema.get("minimum", 0), schema.get("maximum", schema.get("minimum", 0))
                return low if kind == "integer" else (low + high) / 2
            case "boolean":
                return False
        raise ValueError(f"no instance can be made of a schema of type {kind!r}")

    def _property(self, name: str, schema: Mapping[str, Any], rng: random.Random) -> Any:
        made = self._value(schema, rng)
        value = self._values.get(name, made)
        return value if value in schema.get("enum", [value]) else made

    def _string(self, schema: Mapping[str, Any], rng: random.Random) -> str:
        # A short field holds a name, not a sentence that is cut off.
        most = schema.get("maxLength")
        text = self._sentence(rng, self._words if most is None or most > _NAME_CHARS else min(self._words, _NAME_WORDS))
        while len(text) < schema.get("minLength", 0):
            text += f" {rng.choice(_WORDS)}"
        return text if most is None else text[:most].rstrip().ljust(schema.get("minLength", 0), ".")


def first_token(odds: Mapping[str, float], payload: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns the most likely first token, and its ``logprobs``.

    Args:
        odds: Probability of tokens; the remaining probability goes to a token that is never requested.
    """
    everything = dict(odds)
    # The remaining probability stands for all other tokens.
    everything.setdefault("…", max(1.0 - sum(odds.values()), 1e-9))
    ranked = sorted(everything.items(), key=lambda pair: -pair[1])
    chosen = ranked[0][0]
    wanted = payload.get("logprob_token_ids")
    if wanted:
        # Tokens requested by id are reported whatever their probability, not only if they are likely.
        by_id = {token_id(token): (token, mass) for token, mass in everything.items()}
        shown = [(by_id.get(i, ("?", 0.0)), i) for i in wanted]
    else:
        shown = [((token, mass), token_id(token)) for token, mass in ranked[: payload.get("top_logprobs") or 0]]
    as_ids = bool(payload.get("return_tokens_as_token_ids"))

    def entry(token: str, mass: float, number: int) -> dict[str, Any]:
        written = f"token_id:{number}" if as_ids else token
        return {
            "token": written,
            # JSON has no minus infinity; vLLM writes this number instead.
            "logprob": math.log(mass) if mass > 0 else -9999.0,
            "bytes": list(written.encode()),
        }

    top = [entry(token, mass, number) for (token, mass), number in shown]
    return chosen, {"content": [{**entry(chosen, ranked[0][1], token_id(chosen)), "top_logprobs": top}]}


def loop_end(tokens: Sequence[str], sizes: range, times: int) -> int | None:
    """Returns the token number at which a pattern of such a size has repeated ``times`` times; None if none has."""
    # A repeated pattern contains a stretch of the smallest size, which then occurs twice. If no stretch does, the
    # search below, which is much slower, cannot find anything.
    stretches = [tuple(tokens[at : at + sizes.start]) for at in range(len(tokens) - sizes.start + 1)]
    if len(set(stretches)) == len(stretches):
        return None  # the common case, decided quickly
    for end in range(1, len(tokens) + 1):
        for size in sizes:
            tail = tokens[max(0, end - size * times) : end]
            if len(tail) == size * times and tail[size:] == tail[:-size]:
                return end
    return None


TOKENS: Mapping[str, int] = {"describe": 150, "ask": 30, "answer": 40, "summarise": 150, "judge": 250}
"""Of each reply, its JSON included."""
_ANSWERED = "witnessed"  # occurs once in every answer, and nowhere else
_ROUNDS = re.compile(r"in (\d+) rounds")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def meme_text(name: str, rounds: int) -> str:
    """Returns the text of a meme whose trial takes that many rounds."""
    return f"The meme {name} is tried in {rounds} rounds"


def scripted_reply(payload: Mapping[str, Any]) -> str | None:
    """Returns the reply to a chat completion; None if the call is not part of a full trial."""
    words, wanted = "\n".join(texts_of(payload)), wanted_by(payload)
    if "question" in wanted:
        return _long("ask", lambda filler: json.dumps({"question": f"What is there that{filler}?"}))
    if "summary" in wanted or "quotes" in wanted:
        named = _ROUNDS.search(words)
        # The prompt contains all answers so far, which tell the round: the server needs no state for a trial.
        rounds, answered = int(named[1]) if named else 1, words.count(_ANSWERED)
        # Two more letters per round until the last but one, so that the last round is the first that adds nothing new.
        known = _LETTERS[: 2 * min(answered, rounds - 1) + 2]

        def argued(filler: str) -> str:
            reason = f"It is shown that{filler}."
            # Every meme text of this world has this quote.
            found = argument(wanted, known, reason, quote="is tried in", because=f"{known} {reason}")
            return json.dumps(found)

        return _long("summarise", argued)
    if "harmful_strength" in wanted:
        ruled = partial(ruling, wanted, harmful=True, strong="strong")
        return _long("judge", lambda filler: json.dumps(ruled(f"It is found that{filler}.")))
    if "answer" in wanted:
        return _long("answer", lambda filler: json.dumps({"answer": f"It is {_ANSWERED} that{filler}."}))
    if "description" in wanted:
        return _long("describe", lambda filler: json.dumps({"description": f"It is seen that{filler}."}))
    return None


def _long(task: str, make: Callable[[str], str]) -> str:
    """Pads a reply to the length of the task, always with the same words and without loops."""
    missing = TOKENS[task] - len(tokens_of(make("")))
    return make("".join(f" {word}" for word in _english(random.Random(0).choices(_WORDS, k=max(missing, 0)))))


def _english(words: Sequence[str]) -> list[str]:
    """Puts "the" at every eighth place, as the court tells the language of a reply by such words."""
    return ["the" if place % 8 == 7 else word for place, word in enumerate(words)]
