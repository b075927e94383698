"""A fake model server: chat completions with configurable speed, capacity and faults.

It runs no model; it takes the time that a model with these settings would take, keeps a prefix cache as vLLM does, and
counts. For load tests and fault tests::

    python -m eval.standin.server --port 0 --output-token-s 0.02 --capacity 8 --fault 503@0.05

prints ``{"port": …}`` when it listens, and runs until it is stopped. ``GET /stats`` returns its counters, ``POST
/script`` with a JSON list of faults sets the faults of the next calls.
"""

import asyncio
import base64
import binascii
import heapq
import itertools
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import asdict
from typing import Any

from aiohttp import web

from eval.standin.faults import Faults, InjectedFault, Kind
from eval.standin.replies import (
    PrefixCache,
    ReplyMaker,
    first_token,
    loop_end,
    prompt_tokens,
    scripted_reply,
    token_id,
    tokens_of,
)
from eval.standin.settings import Settings, Stats, parsed

_THOUGHT = "Let me see what is asked for here . " * 5


class RefusedCall(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {"Retry-After": f"{retry_after_s:g}"} if retry_after_s else {}


class FakeModelServer:
    """The server."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        keep: bool = False,
        answer: Callable[[dict[str, Any]], str | None] | None = None,
        odds: Callable[[dict[str, Any]], Mapping[str, float]] | None = None,
    ) -> None:
        """Does not listen yet.

        Args:
            answer: Makes the text of a reply from the body of a call; None to generate it.
            odds: Makes the probabilities of first tokens likewise; None for those of the settings.
        """
        self.settings = settings or Settings()
        self.stats = Stats()
        self.faults = Faults(self.settings.faults, self.settings.script, self.settings.seed)
        self.requests: list[dict[str, Any]] = []
        self._keep = keep
        self._answer, self._odds = answer, odds
        if self.settings.play == "synthetic":
            from eval.synthetic.oracle import Oracle  # generates and reads pictures: not needed for load tests

            # Arguments of the caller take precedence.
            self._answer, self._odds = answer or Oracle().answer, odds or Oracle().odds
        elif self.settings.play:
            self._answer = answer or scripted_reply
        self._speaker = ReplyMaker(seed=self.settings.seed, words=self.settings.words, values=self.settings.values)
        self._prefixes = PrefixCache()
        self._pictures: dict[str, dict[str, str]] = {}
        self._order = itertools.count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    def application(self) -> web.Application:
        """Returns the web application."""
        # Prompts carry pictures in base64; aiohttp's default limit for bodies is 1 MiB.
        app = web.Application(client_max_size=256 * 1024 * 1024)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/stats", self._stats)
        app.router.add_post("/script", self._script)
        app.router.add_post("/v1/chat/completions", self._completions)
        # Clients need token ids only to name the tokens whose probabilities they want.
        if "chosen_log_probs" in self.settings.features:
            app.router.add_post("/tokenize", self._tokenize)
        return app

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        if not self._welcome(request):
            return _error(401, "unknown key")
        settings = self.settings
        listed = {"id": settings.model, "object": "model", "created": 0, "owned_by": settings.owned_by}
        return web.json_response({"object": "list", "data": [listed]})

    async def _stats(self, _: web.Request) -> web.Response:
        return web.json_response(asdict(self.stats))

    async def _script(self, request: web.Request) -> web.Response:
        try:
            self.faults.script(await request.json())
        except (TypeError, ValueError):
            return _error(400, "a JSON list of faults is wanted")
        return web.json_response({})

    async def _tokenize(self, request: web.Request) -> web.Response:
        tokens = [token_id(token) for token in tokens_of((await request.json())["prompt"])]
        return web.json_response({"count": len(tokens), "max_model_len": self.settings.context, "tokens": tokens})

    def _welcome(self, request: web.Request) -> bool:
        key = self.settings.api_key
        return key is None or request.headers.get("Authorization") == f"Bearer {key}"

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        self.stats.calls += 1
        try:
            if not self._welcome(request):
                raise RefusedCall(401, "unknown key")
            payload = await request.json()
            if self._keep:
                self.requests.append(deepcopy(payload))
            fault = self.faults.next()
            await self._inject(request, fault)
            async with self._slot(payload.get("priority") or 0):
                body = await self._work(payload, fault)
            # Outside the slot: an answer that drips, or that its client reads slowly, takes no capacity from others.
            return await self._send(request, body, fault)
        except RefusedCall as refused:
            self.stats.refused += 1
            return _error(refused.status, str(refused), refused.headers)
        except (KeyError, TypeError, ValueError):
            self.stats.refused += 1
            return _error(400, "the body is not what the API has")
        except asyncio.CancelledError:
            self.stats.disconnects += 1
            raise
        except ConnectionError:  # the client left while the answer was being sent
            self.stats.disconnects += 1
            return web.Response()

    async def _inject(self, request: web.Request, fault: InjectedFault) -> None:
        if fault.kind is Kind.HANG:
            # Never set: the call ends when its client disconnects.
            await asyncio.Event().wait()
        if fault.kind is Kind.SLOW:
            await asyncio.sleep(fault.seconds)
        if fault.kind is Kind.STATUS:
            raise RefusedCall(fault.status, "as told", retry_after_s=fault.seconds)
        if fault.kind is Kind.RESET:
            assert request.transport is not None
            # Not `close`, which would first send what is left in the buffer.
            request.transport.abort()
            raise RefusedCall(500, "nobody gets this answer")

    @asynccontextmanager
    async def _slot(self, rank: int) -> AsyncIterator[None]:
        """Holds one of the server's slots while the block lasts; calls get one by rank, lowest first, then in order."""
        if rank and "priorities" not in self.settings.features:
            raise RefusedCall(400, "no priorities here")
        stats = self.stats
        if stats.running >= self.settings.capacity and stats.waiting >= self.settings.queue:
            raise RefusedCall(503, "the queue is full")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # The number keeps the arrival order within a rank, and heapq from comparing futures, which have no order.
        heapq.heappush(self._waiting, (rank, next(self._order), turn))
        stats.waiting += 1
        self._admit()
        try:
            await turn
            yield
        finally:
            if turn.cancelled():
                stats.waiting -= 1
            else:  # also if the call was cancelled just after it got a slot
                stats.running -= 1
                self._admit()

    def _admit(self) -> None:
        stats = self.stats
        while self._waiting and stats.running < self.settings.capacity:
            turn = heapq.heappop(self._waiting)[2]
            # Cancelled calls are still in the heap.
            if not turn.done():
                stats.waiting -= 1
                stats.running += 1
                stats.max_running = max(stats.max_running, stats.running)
                turn.set_result(None)

    async def _work(self, payload: dict[str, Any], fault: InjectedFault) -> dict[str, Any]:
        """Takes the time that a model would take, and returns its answer."""
        settings = self.settings
        self._check_request(payload)
        prompt = prompt_tokens(payload["messages"], settings.picture_tokens)
        room = payload.get("max_completion_tokens") or payload.get("max_tokens") or 256
        if len(prompt) + room > settings.context:
            raise RefusedCall(400, f"prompt and reply have more than {settings.context} tokens")
        thought = self._thought(payload)
        text, log_probs = self._reply(payload, prompt, thinks=bool(thought))
        finish = "stop"
        if (end := self._loop_end(payload, text)) is not None:
            finish, text = "repetition", _first_words(text, end)
        words = tokens_of(thought) + tokens_of(text)
        # A call for log-probabilities generates a single token, which ends by its length limit and not by itself.
        if len(words) > room or log_probs:
            finish = "length"
            text = _first_words(text, max(0, room - len(tokens_of(thought))))
            thought = _first_words(thought, room)
        cached = self._prefixes.cached(prompt) if "prefix_cache" in settings.features else 0
        await asyncio.sleep(settings.call_s + (len(prompt) - cached) * settings.prompt_token_s)
        self._prefixes.keep(prompt)  # from here on other calls hit it, as in vLLM
        written = min(len(words), room)
        await asyncio.sleep(written * settings.output_token_s)
        self.stats.prompt_tokens += len(prompt)
        self.stats.cached_tokens += cached
        self.stats.output_tokens += written
        usage: dict[str, Any] = {"prompt_tokens": len(prompt), "completion_tokens": written}
        usage["total_tokens"] = len(prompt) + written
        if "cached_tokens" in settings.features:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        message = {"role": "assistant", "content": text, "refusal": None}
        if thought and self.settings.reasoning_parser:
            message |= {"reasoning": thought, "content": text or None}
        elif thought:
            message["content"] = f"<think>{thought}</think>{text}" if text else f"<think>{thought}"
        choice = {"index": 0, "message": message, "logprobs": log_probs, "finish_reason": finish}
        body = {"id": f"chatcmpl-{self.stats.calls}", "object": "chat.completion", "created": 0}
        return _spoiled({**body, "model": settings.model, "choices": [choice], "usage": usage}, fault)

    def _thought(self, payload: Mapping[str, Any]) -> str:
        """Returns the thought before a reply, by the settings and the request; no longer than it allows, if it can."""
        settings = self.settings
        limit = payload.get("thinking_token_budget") if "thought_limit" in settings.features else None
        if limit is not None and not settings.reasoning_parser:
            raise RefusedCall(400, "the limit of a thought needs a reasoning parser")
        enabled = (payload.get("chat_template_kwargs") or {}).get("enable_thinking")
        turned_off = {
            "": True,
            "template": enabled is False,
            "effort": payload.get("reasoning_effort") == "none",
            "asked": not enabled,
        }
        # Without a reasoning parser, a schema applies from the first token on.
        schema_first = payload.get("response_format") and not settings.reasoning_parser
        if schema_first or turned_off.get(settings.thinks, False):
            return ""
        return _THOUGHT if limit is None else _first_words(_THOUGHT, limit)

    def _loop_end(self, payload: Mapping[str, Any], text: str) -> int | None:
        """Returns the token at which a reply is stopped because it loops, by vLLM's rule."""
        wanted = payload.get("repetition_detection")
        if wanted is None or "repetition_detection" not in self.settings.features:
            return None
        low, high, times = (wanted.get(name, 0) for name in ("min_pattern_size", "max_pattern_size", "min_count"))
        if low < 0 or high < low or times < 2:
            raise RefusedCall(400, "no such patterns")
        return loop_end(tokens_of(text), range(low, high + 1), times)

    def _check_request(self, payload: Mapping[str, Any]) -> None:
        """Refuses requests that this server, as configured, does not support."""
        if payload.get("model") != self.settings.model:
            raise RefusedCall(404, "no such model")
        if payload.get("stream"):
            raise RefusedCall(400, "answers are not streamed here")
        if payload.get("presence_penalty") and "penalties" not in self.settings.features:
            raise RefusedCall(400, "no penalties here")
        pictures = [
            part
            for message in payload["messages"]
            if not isinstance(message["content"], str)
            for part in message["content"]
            if part["type"] == "image_url"
        ]
        if len(pictures) > self.settings.pictures:
            raise RefusedCall(400, f"at most {self.settings.pictures} pictures are taken")
        for part in pictures:
            self._check_picture(part)

    def _check_picture(self, part: dict[str, Any]) -> None:
        ids = "picture_ids" in self.settings.features
        if part.get("image_url") is None:
            if not ids or part.get("uuid") not in self._pictures:
                raise RefusedCall(400, "a picture that was not sent")
            # Whoever answers sees the picture, too.
            part["image_url"] = self._pictures[part["uuid"]]
            return
        head, _, data = part["image_url"]["url"].partition(",")
        if head != "data:image/png;base64":
            raise RefusedCall(400, "a picture that is not sent along")
        try:
            base64.b64decode(data, validate=True)
        except binascii.Error:
            raise RefusedCall(400, "a picture that is not base64") from None
        self.stats.pictures_sent += 1
        if ids and part.get("uuid"):
            # From now on the id alone is enough.
            self._pictures.setdefault(part["uuid"], part["image_url"])

    def _reply(
        self, payload: dict[str, Any], prompt: Sequence[str], *, thinks: bool
    ) -> tuple[str, dict[str, Any] | None]:
        features = self.settings.features
        if payload.get("logprobs") and "log_probs" in features:
            # A server without this feature ignores fields that name tokens by id.
            known = payload if "chosen_log_probs" in features else {"top_logprobs": payload.get("top_logprobs")}
            odds = self._odds(payload) if self._odds else self.settings.odds
            if thinks:  # the next token is the first word of a thought
                odds = {token: mass * 1e-9 for token, mass in odds.items()}
            return first_token(odds, known)
        made = self._answer(payload) if self._answer else None
        if made is not None:
            return made, None
        wanted = payload.get("response_format") or {}
        if wanted.get("type") == "json_schema":
            if "json_schema" in features:
                return self._speaker.instance(prompt, wanted["json_schema"]["schema"]), None
            if not self.settings.ignores_schemas:
                raise RefusedCall(400, "no schemas here")
        return self._speaker.text(prompt), None

    async def _send(self, request: web.Request, body: dict[str, Any], fault: InjectedFault) -> web.StreamResponse:
        data = json.dumps(body, ensure_ascii=False).encode()
        if fault.kind is Kind.GARBAGE:
            data = b"<html>no such page</html>"
        # With its length, so that the client can tell a truncated answer from a complete one.
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(len(data))})
        await response.prepare(request)
        if fault.kind is Kind.CUT:
            await response.write(data[: len(data) // 2])
            assert request.transport is not None
            # Not `abort`: the half that was written must arrive.
            request.transport.close()
            return response
        if fault.kind is Kind.DRIP:
            for byte in data:
                await response.write(bytes([byte]))
                await asyncio.sleep(fault.seconds)
        else:
            await response.write(data)
        await response.write_eof()
        self.stats.answered += 1
        return response


def _spoiled(body: dict[str, Any], fault: InjectedFault) -> dict[str, Any]:
    (choice,) = body["choices"]
    content = choice["message"]["content"] or ""

    def reply(content: str | None, finish: str = choice["finish_reason"], **more: str) -> dict[str, Any]:
        message = {**choice["message"], "content": content, **more}
        return {"choices": [{**choice, "message": message, "finish_reason": finish}]}

    changes: Mapping[Kind, dict[str, Any]] = {
        Kind.WRONG_SHAPE: {"choices": {"text": 7}, "usage": "many"},
        Kind.NO_CHOICES: {"choices": []},
        Kind.DUPLICATE: {"choices": [choice, {**choice, "index": 1}]},
        Kind.WRONG_SCHEMA: reply('{"unexpected":[1,2,3]}'),
        Kind.TRUNCATED: reply(content[: len(content) // 2], "length"),
        Kind.EMPTY: reply(""),
        Kind.REFUSAL: reply(None, refusal="I can't help with that."),
        Kind.FILTER: reply(None, "content_filter"),
        Kind.ABORT: reply(content, "abort"),
    }
    return {**body, **changes.get(fault.kind, {})}


def _first_words(text: str, count: int) -> str:
    """Returns the text up to and including token number ``count``."""
    at = 0
    for token in tokens_of(text)[:count]:
        # Searched for, because tokens omit the white space between them.
        at = text.index(token, at) + len(token)
    return text[:at]


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
    body = {"error": {"message": message, "type": "stand-in", "code": status}}
    return web.json_response(body, status=status, headers=headers)


@asynccontextmanager
async def serving(server: FakeModelServer, port: int = 0) -> AsyncIterator[int]:
    """Runs a fake server on the loopback interface while the context lasts; yields its port."""
    # Handlers are cancelled when their client disconnects: that is how disconnects are detected.
    # At the end, calls that hang by their fault would never return: they get half a second.
    runner = web.AppRunner(server.application(), handler_cancellation=True, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    try:
        # More than the default of 128: load tests open hundreds of connections at the same moment.
        site = web.TCPSite(runner, "127.0.0.1", port, backlog=1024)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a fake server until it is stopped."""
    asyncio.run(_run(*parsed(arguments)))


async def _run(settings: Settings, port: int) -> None:
    async with serving(FakeModelServer(settings), port) as listening:
        sys.stdout.write(json.dumps({"port": listening}) + "\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    main()
