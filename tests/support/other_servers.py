"""Fakes of SGLang, llama.cpp and OpenAI's servers: the fake model server with their response formats.

SGLang and llama.cpp ignore unknown request fields and return thoughts in ``reasoning_content``. None of the three
supports picture ids or log-probabilities of chosen tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from eval.standin.faults import InjectedFault
from eval.standin.replies import token_id
from eval.standin.server import FakeModelServer, RefusedCall
from eval.standin.settings import FEATURES, Settings

_LACKS = {"picture_ids", "chosen_log_probs", "priorities", "repetition_detection"}


def _of(settings: Mapping[str, Any]) -> Settings:
    return Settings(**{"play": "rounds", "owned_by": "another", **settings, "features": FEATURES - _LACKS})


def _reshape_thought(choice: dict[str, Any]) -> None:
    message = choice["message"]
    message["reasoning_content"] = message.pop("reasoning", None)
    message.pop("refusal")


class FakeSglang(FakeModelServer):
    """SGLang: reports cached tokens only if enabled and not zero; has ``/tokenize`` like vLLM."""

    def __init__(self, *, cache_report: bool = True, **settings: Any) -> None:
        super().__init__(_of(settings), keep=True)
        self._cache_report = cache_report

    def application(self) -> web.Application:
        app = super().application()
        app.router.add_post("/tokenize", self._tokens)
        return app

    async def _tokens(self, request: web.Request) -> web.Response:
        prompt = (await request.json())["prompt"]
        return web.json_response({"tokens": [token_id(prompt)], "count": 1, "max_model_len": 32_768})

    async def _work(self, payload: dict[str, Any], fault: InjectedFault) -> dict[str, Any]:
        body = await super()._work(payload, fault)
        (choice,) = body["choices"]
        _reshape_thought(choice)
        choice |= {"matched_stop": None}
        details = body["usage"]["prompt_tokens_details"]
        if not self._cache_report or not details["cached_tokens"]:
            body["usage"]["prompt_tokens_details"] = None
        return {**body, "metadata": {"weight_version": "default"}}


class FakeLlamaCpp(FakeModelServer):
    """llama.cpp: other field in ``/tokenize``, token ids in log-probabilities, and timings.

    It ignores the requested model's name, and has its own message for a request that is too long for its slot.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(_of(settings), keep=True)

    def application(self) -> web.Application:
        app = super().application()
        app.router.add_post("/tokenize", self._tokens)
        return app

    async def _tokens(self, request: web.Request) -> web.Response:
        text = (await request.json()).get("content")
        return web.json_response({"tokens": [] if text is None else [token_id(text)]})

    async def _work(self, payload: dict[str, Any], fault: InjectedFault) -> dict[str, Any]:
        try:
            body = await super()._work({**payload, "model": self.settings.model}, fault)
        except RefusedCall as refused:
            if "more than" not in str(refused):
                raise
            raise RefusedCall(
                400, "request (40000 tokens) exceeds the available context size (16384 tokens), try increasing it"
            ) from None
        (choice,) = body["choices"]
        _reshape_thought(choice)
        for position in (choice["logprobs"] or {}).get("content", ()):
            position["top_logprobs"] = [
                {"id": number, "bytes": list(one["token"].encode()), **one}
                for number, one in enumerate(position["top_logprobs"])
            ]
        cached = body["usage"]["prompt_tokens_details"]["cached_tokens"]
        timings = {"cache_n": cached, "prompt_n": body["usage"]["prompt_tokens"] - cached, "predicted_ms": 1.5}
        return {**body, "system_fingerprint": "b1", "timings": timings}


class FakeOpenAI(FakeModelServer):
    """OpenAI with a reasoning model: refuses unknown fields and hides thoughts."""

    def __init__(self, *, any_temperature: bool = False, **settings: Any) -> None:
        super().__init__(_of({"owned_by": "openai", **settings}), keep=True)
        self._any_temperature = any_temperature

    async def _work(self, payload: dict[str, Any], fault: InjectedFault) -> dict[str, Any]:
        for name in ("max_tokens", "chat_template_kwargs", "repetition_detection", "priority", "thinking_token_budget"):
            if name in payload:
                raise RefusedCall(400, f"Unsupported parameter: '{name}' is not supported with this model.")
        if payload.get("temperature", 1) != 1 and not self._any_temperature:
            raise RefusedCall(400, "Unsupported value: 'temperature' does not support 0 with this model.")
        body = await super()._work(payload, fault)
        (choice,) = body["choices"]
        thought = choice["message"].pop("reasoning", None) or ""
        body["usage"]["completion_tokens_details"] = {"reasoning_tokens": len(thought.split()), "audio_tokens": 0}
        return body
