"""Starts a vLLM on this machine, says when it answers, notices its death, and leaves nothing of it behind."""

from __future__ import annotations

import asyncio
import base64
import io
import ipaddress
import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2
from pydantic import Field, SecretStr, field_validator

from court.backends.http import http_client
from court.errors import NotLoaded, Unavailable
from court.settings import TrialSettings
from court.values import Value
from serving.models.connect import pictures_per_prompt
from serving.models.process_group import ProcessGroup

_CHILD = Path(__file__).with_name("vllm_child.py")
_ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1", "PYTHONUNBUFFERED": "1"}
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

    Raises:
        NotLoaded: On entering: there is no vLLM.
        VllmFailed: On entering: it ended, or did not answer in time.
    """

    def __init__(self, settings: VllmSettings, *, log: Callable[[str], None] = lambda _: None) -> None:
        self.settings = settings
        self.model = settings.served_name
        # A key also on loopback: any other user of this machine can connect to it.
        self.api_key = settings.api_key.get_secret_value()
        self._log_line = log
        self._port = settings.port
        self._group: ProcessGroup | None = None

    @property
    def base_url(self) -> str:
        """Base URL for an OpenAI client."""
        return f"{self.root_url}/v1"

    @property
    def root_url(self) -> str:
        """Root URL, under which ``/health`` and ``/metrics`` are."""
        host = self.settings.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self._port}"

    @property
    def pid(self) -> int:
        """Id of the process that was started, which leads its own group."""
        return self._started.pid

    @property
    def running(self) -> bool:
        """True if the process is alive; it may not answer yet, or no longer."""
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
        await self._find_vllm()
        self._start()
        try:
            await self._until_it_answers()
        # Also where the start was cancelled: nothing of vLLM may be left running.
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

    async def _find_vllm(self) -> None:
        if not hasattr(os, "waitid"):
            raise NotLoaded("Starting vLLM needs Linux, or macOS with Python 3.13 or newer.", reason="VLLM_MISSING")
        # Not in the working directory: a folder called vllm is none.
        code = "import importlib.util, sys; sys.path = [p for p in sys.path if p]; "
        code += "sys.exit(not importlib.util.find_spec('vllm'))"
        try:
            process = await asyncio.create_subprocess_exec(
                self.settings.python, "-c", code, stdin=subprocess.DEVNULL, env=self._environment()
            )
            found = await process.wait() == 0
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
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MEMECOURT_")}
        # The key goes this way because anyone on the machine can read a command line.
        return {**environment, **_ENVIRONMENT, **self.settings.environment, "VLLM_API_KEY": self.api_key}

    def _start(self) -> None:
        settings = self.settings
        assert self._group is None, "one server is one process: make another to start again"
        # Chosen as late as can be: until vLLM listens, another process may take it.
        self._port = settings.port or free_port(settings.host)
        self._group = ProcessGroup(
            # By way of the child, which ends vLLM also where this process is killed and can end nothing.
            [settings.python, _CHILD, str(settings.grace), *settings.arguments(self._port)],
            self._environment(),
            secret=self.api_key,
            tell=self._log_line,
        )

    async def _until_it_answers(self) -> None:
        """Health alone is not enough: it is there before the first request has shown that the model works."""
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(self.settings.start_seconds),
                http_client(connections=1, base_url=self.root_url) as client,
            ):
                while self.running:
                    # No connection yet, or one that broke off: whether the process still runs is what ends the loop.
                    with suppress(httpx2.TransportError):
                        if (await client.get("/health", timeout=5)).status_code == 200:
                            return await self._request(client)
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

    async def _request(self, client: httpx2.AsyncClient) -> None:
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
    """Returns a free port. Should another process take it first, vLLM says so and ends."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _grey_picture() -> str:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (56, 56), (128, 128, 128)).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


_OURS = ("model", "model-tag", "served-model-name", "host", "port", "uds", "api-key", "root-path")
"""vLLM's flags that are settings here: given twice, we would wait at another place than it listens at."""


def _python() -> Path:
    return Path(os.environ.get("MEMECOURT_VLLM_PYTHON") or sys.executable)


class VllmSettings(Value):
    """Settings of a vLLM process to start."""

    model: str = Field(min_length=1)
    """A name on the hub that vLLM fetches from, or a folder."""
    name: str | None = None
    """What clients call it; the model's name, of a folder only its last part, if not given."""
    python: Path = Field(default_factory=_python)
    """A Python that has vLLM; from MEMECOURT_VLLM_PYTHON, else ours."""
    host: str = "127.0.0.1"
    """An address of this machine that others can't reach: vLLM asks for its key on some of its routes only."""
    port: int = Field(default=0, ge=0, le=65_535)
    """0 for a free one."""
    api_key: SecretStr = Field(default_factory=lambda: SecretStr(secrets.token_urlsafe(32)))
    """A new one for every start, if not given."""
    context: int = Field(default=32_768, ge=1024)
    """Tokens of prompt and reply together."""
    images: int = Field(default_factory=lambda: pictures_per_prompt(TrialSettings()), ge=0, le=64)
    """Pictures in one prompt: up to four frames of a meme and the precedents' pictures. 0 for a model without eyes."""
    max_pixels: int = Field(default=1_003_520, ge=0)
    """A larger picture is made smaller; 1,003,520 are 1,280 tokens of Qwen2.5-VL. 0: as the model has it."""
    min_pixels: int = Field(default=3136, ge=0)
    """A smaller picture is made larger; 3,136 are 4 tokens of Qwen2.5-VL, as its makers have it."""
    tensor_parallel: int = Field(default=1, ge=1, le=64)
    """GPUs that share the model's layers. Its vision encoder, which is small, is copied to each, and pictures are
    shared out: splitting it would cost more in talk between GPUs than it saves."""
    requests: int = Field(default=1024, ge=1)
    """Requests held at once, running and waiting; beyond, vLLM answers 503 without saying when to come again."""
    flags: tuple[str, ...] = ()
    """More of vLLM's own flags. They come last, so they win."""
    environment: Mapping[str, str] = Field(default_factory=dict)
    """More environment for vLLM."""
    start_seconds: float = Field(default=3600, gt=0)
    """To answer for the first time; a model may have to be fetched first."""
    grace: float = Field(default=20, ge=0)
    """Seconds it has to end when told to, half of them for the requests it holds."""

    @field_validator("host")
    @classmethod
    def _loopback(cls, host: str) -> str:
        if host != "localhost" and not ipaddress.ip_address(host).is_loopback:
            raise ValueError("vLLM must listen on loopback: some of its routes ask for no key")
        return host

    @field_validator("flags")
    @classmethod
    def _not_ours(cls, flags: tuple[str, ...]) -> tuple[str, ...]:
        for flag in flags:
            # vLLM takes either spelling, and values after a space or an equals sign.
            name = flag.partition("=")[0].replace("_", "-").removeprefix("--")
            if flag.startswith("--") and name in _OURS:
                raise ValueError(f"--{name} is a setting of memecourt and can't be handed on to vLLM")
        return flags

    @property
    def served_name(self) -> str:
        """Model name for clients. A folder's path would end up in every record."""
        return self.name or (Path(self.model).resolve().name if Path(self.model).is_dir() else self.model)

    def arguments(self, port: int) -> list[str]:
        """Command line after ``vllm serve``. The key is not in it: anyone on the machine can read that."""
        options: dict[str, Any] = {
            "--served-model-name": self.served_name,
            "--host": self.host,
            "--port": port,
            "--max-model-len": self.context,
            # An empty list would allow every host; this one can't exist, so pictures come as bytes or not at all.
            "--allowed-media-domains": "none.invalid",
            # Guidance, for xgrammar's bounded strings come back with raw control characters. Without padding: a model
            # may go on for ever between two braces.
            "--structured-outputs-config": json.dumps({"backend": "guidance", "disable_any_whitespace": True}),
            # Otherwise the sampling settings that a model ships with apply wherever a request names none.
            "--generation-config": "vllm",
            "--scheduling-policy": "priority",
            "--max-num-queued-reqs": self.requests,
            "--shutdown-timeout": int(self.grace / 2),
            "--limit-mm-per-prompt": json.dumps({"image": self.images, "video": 0}),
        }
        if self.images and self.max_pixels:
            # Areas, despite their names. transformers 5.23 drops "max_pixels".
            size = {"longest_edge": self.max_pixels, "shortest_edge": min(self.min_pixels, self.max_pixels)}
            options["--mm-processor-kwargs"] = json.dumps({"size": size})
        if self.tensor_parallel > 1:
            options["--tensor-parallel-size"] = self.tensor_parallel
            if self.images:
                options["--mm-encoder-tp-mode"] = "data"
        switches = ["--enable-prefix-caching", "--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]
        return [self.model, *(str(part) for pair in options.items() for part in pair), *switches, *self.flags]
