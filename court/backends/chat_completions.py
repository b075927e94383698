"""Chat models behind any server that speaks OpenAI's chat completions: vLLM, SGLang, llama.cpp, Ollama and others.

Time is kept and failures are tried again in one place, :meth:`ChatCompletions._within`; the SDK does neither. Its own
defaults (600 s, two retries) would run a generation three times.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import httpx2
import openai
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_before_delay, wait_random_exponential

from court.backends import chat_wire as wire
from court.backends.chat_failures import Again, Failure, garbled, gone, of_sdk, overrun
from court.backends.chat_http import http_client as http_client  # offered here too: what a model is made with
from court.backends.chat_wire import Capabilities, LogProbs
from court.backends.load import Load
from court.errors import ModelRefused
from court.meme import Frame
from court.ports import ChatReply, ChatRequest, Odds

MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""Of one answer. Far above what any ``max_tokens`` of ours can fill."""
_KNOWN = 4096  # ids of pictures that the server is thought to have

_T = TypeVar("_T")


class ChatCompletions:
    """A :class:`~court.ports.ChatModel`; safe to call concurrently, within one event loop.

    Attributes:
        capabilities: What the server can do. Set them, or have :func:`~court.backends.chat_probe.probe` find out.
    """

    def __init__(
        self,
        *,
        base_url: str,
        model: str,
        api_key: str | None = None,
        capabilities: Capabilities | None = None,
        attempts: int = 4,
        pause_s: float = 0.25,
        pause_max_s: float = 8.0,
        http: httpx2.AsyncClient | None = None,
        load: Load | None = None,
    ) -> None:
        """Connects to nothing yet.

        Args:
            base_url: Of the API, usually ending in ``/v1``.
            model: Its name at the server.
            api_key: Where the server wants one. It is not looked for in the environment.
            capabilities: What the server can do.
            attempts: How often a call is made at most.
            pause_s: Longest pause before the second attempt, in seconds; doubles with each further one.
            pause_max_s: Longest pause before any attempt, in seconds; a server's ``Retry-After`` comes on top.
            http: A pool to share; whoever made it closes it. A pool of its own otherwise.
            load: Counts the calls in flight, together with those of others that it is given to.
        """
        self.capabilities = capabilities or Capabilities()
        self._model = model
        self._attempts = attempts
        self._jitter = wait_random_exponential(multiplier=pause_s, max=pause_max_s)
        self._load = load or Load(1)
        self._own_http = http is None
        self._http = http or http_client()
        self._client = openai.AsyncOpenAI(
            base_url=base_url,
            api_key=api_key or "none",  # the SDK wants one; a server that has none set doesn't look at it
            max_retries=0,
            timeout=self._http.timeout,
            http_client=self._http,
        )
        # What the SDK found in the environment was not meant for this server.
        self._client.organization = self._client.project = self._client.admin_api_key = None
        root = str(self._client.base_url).rstrip("/").removesuffix("/v1")
        self._tokenize_url = f"{root}/tokenize"
        self._token_ids: dict[str, int] = {}
        self._known: OrderedDict[str, None] = OrderedDict()
        for name in ("openai", "httpx2", "httpcore2"):
            # They log addresses, and bodies at the lowest level; a marker in a meme must not turn up in a log.
            logging.getLogger(name).setLevel(logging.WARNING)

    @property
    def name(self) -> str:
        """The model's name, as calls are made with it."""
        return self._model

    async def reply(self, request: ChatRequest, *, within_s: float) -> ChatReply:
        """One reply; see :meth:`court.ports.ChatModel.reply`."""
        began = time.monotonic()
        answer = await self.answer(request, within_s=within_s)
        try:
            return answer.reply(time.monotonic() - began)
        except Failure as failure:
            raise failure.error from None

    async def odds(self, request: ChatRequest, options: Sequence[str], *, within_s: float) -> Odds | None:
        """How likely each option is to be the first token; see :meth:`court.ports.ChatModel.odds`.

        On vLLM the probabilities of exactly these tokens are asked for, as they are before anything shapes them; no
        other token is masked, for under a mask a server set to tell processed probabilities would tell them
        renormalised. Elsewhere they are looked up among the 20 most likely tokens: an option that is not among them
        has mass 0, which is a lower bound.
        """
        if self.capabilities.log_probs is LogProbs.NONE:
            return None
        began = time.monotonic()
        extra: dict[str, Any] = {"logprobs": True, "top_logprobs": wire.TOP}
        ids: list[int] | None = None
        if self.capabilities.log_probs is LogProbs.CHOSEN:
            ids = [await self._token_id(option, within_s - (time.monotonic() - began)) for option in options]
            extra |= {"top_logprobs": len(ids), "logprob_token_ids": ids, "return_tokens_as_token_ids": True}
        answer = await self.answer(
            replace(request, reply_schema=None, max_tokens=1),
            within_s=within_s - (time.monotonic() - began),
            extra=extra,
        )
        try:
            candidates = answer.first_token()
            if candidates is None:
                raise garbled()
            masses = wire.masses_of_words(candidates, options) if ids is None else wire.masses_of_ids(candidates, ids)
            if masses is None:
                raise garbled()
            return Odds(masses=masses, reply=answer.reply(time.monotonic() - began))
        except Failure as failure:
            raise failure.error from None

    async def answer(
        self, request: ChatRequest, *, within_s: float, extra: dict[str, Any] | None = None
    ) -> wire.Answer:
        """The answer as the server gave it, for those who want to see more of it than a reply.

        Args:
            request: What to ask.
            within_s: Seconds that it may take, retries included.
            extra: Further fields of the body.

        Raises:
            As :meth:`reply`.
        """
        frames = [part for part in request.parts if isinstance(part, Frame)]
        if len(frames) > self.capabilities.pictures:
            raise ModelRefused(
                f"The request shows {len(frames)} pictures; the model server takes {self.capabilities.pictures} in one "
                "prompt. Let it take more, or show fewer.",
                reason="MODEL_TOO_MANY_PICTURES",
            )
        fields = dict(extra or {})
        if request.reply_schema is not None and self.capabilities.json_schema:
            fields["response_format"] = wire.response_format(request.reply_schema)
        return await self._within(within_s, lambda: self._ask(request, frames, fields))

    async def answer_by_id(self, frame: Frame, request: ChatRequest, *, within_s: float) -> wire.Answer:
        """The answer to a request that begins with a picture, which is named and not sent. Raises as :meth:`reply`."""
        request = replace(request, parts=(frame, *request.parts))
        known = {wire.digest(frame): None}

        async def ask() -> wire.Answer:
            return wire.read(await self._post(request, {}, known))

        return await self._within(within_s, ask)

    async def listed(self, *, within_s: float) -> list[str]:
        """Names of the models that the server lists. Raises as :meth:`reply`."""

        async def ask() -> list[str]:
            try:
                response = await self._client.get("/models", cast_to=httpx2.Response)
            except openai.OpenAIError as error:
                raise of_sdk(error) from None
            return wire.read_models(response.content)

        return await self._within(within_s, ask)

    async def aclose(self) -> None:
        """Closes the connections, unless they are shared."""
        if self._own_http:
            await self._http.aclose()

    async def _ask(self, request: ChatRequest, frames: Sequence[Frame], fields: dict[str, Any]) -> wire.Answer:
        ids = [wire.digest(frame) for frame in frames] if self.capabilities.picture_ids else []
        # Looked up now: until the answer is here, another call may have found out that the server lost them.
        named = [i for i in ids if i in self._known]
        try:
            answer = wire.read(await self._post(request, fields, self._known))
        except Failure as failure:
            if not named or not isinstance(failure.error, ModelRefused) or failure.error.status != 400:
                raise
            # It may have dropped a picture that it had. Refused is refused: this is not a retry, nothing has run.
            for i in named:
                self._known.pop(i, None)
            answer = wire.read(await self._post(request, fields, self._known))
        for i in ids:
            self._known[i] = None
            self._known.move_to_end(i)
        while len(self._known) > _KNOWN:
            self._known.popitem(last=False)
        return answer

    async def _post(self, request: ChatRequest, fields: dict[str, Any], known: Mapping[str, None]) -> bytes:
        """The body of the answer. Streamed, so that a reply that broke off can be told from one that never began."""
        try:
            asking = self._client.chat.completions.with_streaming_response.create(
                model=self._model,
                messages=[],  # they go with the extra fields: the SDK would walk through each part, at 2 ms a call
                # Not max_completion_tokens: servers other than OpenAI's own know this one, not all know the other.
                max_tokens=request.max_tokens,
                temperature=request.temperature,
                extra_body={"messages": wire.messages(request, self.capabilities, known), **fields},
            )
            async with asking as response:
                return await _read(response.http_response)
        except openai.OpenAIError as error:
            raise of_sdk(error) from None

    async def _token_id(self, option: str, within_s: float) -> int:
        """Id of the token that an option is."""
        if option not in self._token_ids:

            async def ask() -> list[int]:
                try:
                    response = await self._client.post(
                        self._tokenize_url,
                        body={"model": self._model, "prompt": option, "add_special_tokens": False},
                        cast_to=httpx2.Response,
                    )
                except openai.OpenAIError as error:
                    raise of_sdk(error) from None
                return wire.read_tokens(response.content)

            ids = await self._within(within_s, ask)
            if len(ids) != 1:
                raise ModelRefused(
                    "An option is not a single token for this model. Choose shorter ones.", reason="MODEL_OPTION"
                )
            (self._token_ids[option],) = ids
        return self._token_ids[option]

    async def _within(self, within_s: float, ask: Callable[[], Awaitable[_T]]) -> _T:
        """Asks, and asks again where that makes sense, within the time."""
        if within_s <= 0:
            raise overrun()
        retrying = AsyncRetrying(
            retry=retry_if_exception(lambda error: isinstance(error, Failure) and error.again is not Again.NEVER),
            # When the pause would end after the deadline, the failure is told now and not as a lack of time then.
            stop=lambda state: self._asked_enough(state) or stop_before_delay(within_s)(state),
            wait=self._pause,
            reraise=True,
        )

        async def attempt() -> _T:
            with self._load.call():  # not while it pauses: the server has nothing to do for it then
                return await ask()

        try:
            async with asyncio.timeout(within_s):
                return await retrying(attempt)
        except TimeoutError:
            raise overrun() from None
        except Failure as failure:
            raise failure.error from None

    def _asked_enough(self, state: RetryCallState) -> bool:
        failure = _failure(state)
        return state.attempt_number >= (2 if failure.again is Again.ONCE else self._attempts)

    def _pause(self, state: RetryCallState) -> float:
        return _failure(state).after_s + self._jitter(state)


def _failure(state: RetryCallState) -> Failure:
    failure = state.outcome.exception() if state.outcome else None
    assert isinstance(failure, Failure)
    return failure


async def _read(response: httpx2.Response) -> bytes:
    body = bytearray()
    try:
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > MAX_ANSWER_BYTES:
                raise garbled()
    except httpx2.DecodingError:
        raise garbled() from None
    except httpx2.TransportError:
        # It had begun: the generation has run, and would run again.
        raise gone(Again.NEVER) from None
    return bytes(body)
