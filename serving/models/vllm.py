"""Starts a vLLM on this machine, says when it answers, notices its death, and leaves nothing of it behind."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2

from court.errors import BadRequest, NotLoaded, Unavailable
from serving.models.process_group import ProcessGroup
from serving.models.vllm_settings import VllmSettings

__all__ = ["VllmFailed", "VllmServer", "VllmSettings", "free_port"]

_CHILD = Path(__file__).with_name("vllm_child.py")
_TOLD = {"VLLM_NO_USAGE_STATS": "1", "PYTHONUNBUFFERED": "1"}
"""vLLM tells its makers what is run with it unless told not to; and its log is to come as it is said."""
_SHOWN = 40
"""Lines of the log that an error carries."""


class VllmFailed(Unavailable):
    """vLLM did not come up, or ended.

    Attributes:
        log: The last lines that it said. They may name paths: for whoever started it, not for callers of the court.
    """

    def __init__(self, message: str, *, reason: str, log: tuple[str, ...]) -> None:
        super().__init__(message, reason=reason)
        self.log = log[-_SHOWN:]


class VllmServer:
    """One vLLM process with its engine and workers, from ``async with`` to its end.

    Entering starts it and waits until it has answered a real request. Should we die first, it ends by itself
    (``vllm_child.py``). To start again after it has ended, make another.

    Args:
        settings: What to start.
        log: Is told every line that vLLM says, on a thread of its own.

    Raises:
        NotLoaded: On entering: there is no vLLM.
        VllmFailed: On entering: it ended, or did not answer in time.
    """

    def __init__(self, settings: VllmSettings, *, log: Callable[[str], None] = lambda _: None) -> None:
        self.settings = settings
        self.model = settings.served_name
        self.api_key = settings.api_key.get_secret_value()
        self._tell = log
        self._port = settings.port
        self._group: ProcessGroup | None = None

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes as such."""
        return f"{self.root_url}/v1"

    @property
    def root_url(self) -> str:
        """Where ``/health`` and ``/metrics`` are."""
        host = self.settings.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self._port}"

    @property
    def pid(self) -> int:
        """Of the process that was started, which leads its own group."""
        return self._started.pid

    @property
    def running(self) -> bool:
        """Whether the process is there; it may not answer yet, or no longer."""
        return self._group is not None and self._group.running

    def log(self, lines: int = _SHOWN) -> tuple[str, ...]:
        """The last that it said."""
        return self._group.log(lines) if self._group else ()

    async def ended(self) -> int:
        """Waits until it has ended, of itself or by ``stop``, with its engine and workers; tells its exit code."""
        return await self._started.ended()

    async def stop(self) -> None:
        """Tells it to end, and after the grace ends all of it. What has ended already is left alone."""
        if self._group is not None:
            await self._group.stop(self.settings.grace)

    async def __aenter__(self) -> Self:
        await self._look_for_vllm()
        self._start()
        try:
            await self._until_it_answers()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def _started(self) -> ProcessGroup:
        assert self._group is not None, "not started"
        return self._group

    async def _look_for_vllm(self) -> None:
        if not hasattr(os, "waitid"):
            raise NotLoaded("Starting vLLM needs Linux, or macOS with Python 3.13 or newer.", reason="VLLM_MISSING")
        # Not in the working directory: a folder called vllm is none.
        code = "import importlib.util, sys; sys.path = [p for p in sys.path if p]; "
        code += "sys.exit(not importlib.util.find_spec('vllm'))"
        try:
            asked = await asyncio.create_subprocess_exec(
                self.settings.python, "-c", code, stdin=subprocess.DEVNULL, env=self._environment()
            )
            found = await asked.wait() == 0
        except OSError:
            found = False
        if not found:
            raise NotLoaded(
                "vLLM is not installed in the Python that was to run it. Either: pip install vllm, or name a Python "
                "that has it in MEMECOURT_VLLM_PYTHON.",
                reason="VLLM_MISSING",
            )

    def _environment(self) -> dict[str, str]:
        """Ours, without our own settings: some are secrets, and none is vLLM's business."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MEMECOURT_")}
        # The key goes this way because anyone on the machine can read a command line.
        return {**kept, **_TOLD, **self.settings.environment, "VLLM_API_KEY": self.api_key}

    def _start(self) -> None:
        settings = self.settings
        assert self._group is None, "one server is one process: make another to start again"
        self._port = settings.port or free_port(settings.host)
        try:
            kept = settings.log_file.open("w", encoding="utf-8") if settings.log_file else None
        except OSError:
            raise BadRequest("The file for vLLM's log can't be written.", field="log_file") from None
        self._group = ProcessGroup(
            [settings.python, _CHILD, str(settings.grace), *settings.arguments(self._port)],
            self._environment(),
            secret=self.api_key,
            tell=self._tell,
            log_file=kept,
        )

    async def _until_it_answers(self) -> None:
        """Health alone is not enough: it is there before the first request has shown that the model works."""
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(self.settings.start_seconds),
                # No proxy from the environment may come between, or see the key.
                httpx2.AsyncClient(base_url=self.root_url, trust_env=False, timeout=None) as client,
            ):
                while self.running:
                    with suppress(httpx2.TransportError):
                        if (await client.get("/health", timeout=5)).status_code == 200:
                            return await self._ask(client)
                    await asyncio.sleep(0.2)
                code = await self.ended()
                raise VllmFailed(
                    f"vLLM ended with code {code} before it answered; the last lines of its log say why.",
                    reason="VLLM_ENDED",
                    log=self.log(),
                )
        raise VllmFailed(
            f"vLLM did not answer within {self.settings.start_seconds:.0f} s; its log says how far it came.",
            reason="VLLM_NOT_READY",
            log=self.log(),
        )

    async def _ask(self, client: httpx2.AsyncClient) -> None:
        """One token, about a picture if it is to take any: a model without eyes is found out here."""
        question: list[dict[str, Any]] = [{"type": "text", "text": "Say yes."}]
        if self.settings.images:
            question.insert(0, {"type": "image_url", "image_url": {"url": _grey_picture()}})
        request = {"model": self.model, "messages": [{"role": "user", "content": question}], "max_tokens": 1}
        headers = {"Authorization": f"Bearer {self.api_key}"}
        answer = await client.post("/v1/chat/completions", json=request, headers=headers)
        if answer.status_code != 200:
            raise VllmFailed(
                f"vLLM runs but answered a first request with HTTP {answer.status_code}; what it said stands at the "
                "end of its log. If the model takes no pictures, allow 0 in a prompt.",
                reason="VLLM_REFUSES",
                log=(*self.log(), answer.text[:2000]),
            )


def free_port(host: str) -> int:
    """One that nobody listens on at the moment. Should another take it first, vLLM says so and ends."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _grey_picture() -> str:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (56, 56), (128, 128, 128)).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
