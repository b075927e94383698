"""How a vLLM on this machine is started: the settings, and the command line that they come to."""

from __future__ import annotations

import ipaddress
import json
import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

_OURS = ("model", "served-model-name", "host", "port", "uds", "api-key", "root-path")
"""vLLM's flags that are settings here: given twice, we would wait at another place than it listens at."""


def _python() -> Path:
    return Path(os.environ.get("MEMECOURT_VLLM_PYTHON") or sys.executable)


class VllmSettings(BaseModel):
    """What to start and how."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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
    images: int = Field(default=8, ge=0, le=64)
    """Pictures in one prompt: up to four frames of a meme and the precedents' pictures. 0 for a model without eyes."""
    max_pixels: int = Field(default=1_003_520, ge=0)
    """A larger picture is made smaller; 1,003,520 are 1,280 tokens of Qwen2.5-VL. 0: as the model has it."""
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
    log_file: Path | None = None
    """Where its log is kept too; begun anew at every start."""

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
            name = flag.partition("=")[0].replace("_", "-").removeprefix("--")
            if flag.startswith("--") and name in _OURS:
                raise ValueError(f"--{name} is a setting of memecourt and can't be handed on to vLLM")
        return flags

    @property
    def served_name(self) -> str:
        """What clients call the model. A folder's path would end up in every record."""
        return self.name or (Path(self.model).resolve().name if Path(self.model).is_dir() else self.model)

    def arguments(self, port: int) -> list[str]:
        """VLLM's command line. The key is not in it: anyone on the machine can read that."""
        given: dict[str, Any] = {
            "--model": self.model,
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
            # Areas, despite their names; the smaller one is Qwen's own. transformers 5.23 drops "max_pixels".
            size = {"longest_edge": self.max_pixels, "shortest_edge": min(3136, self.max_pixels)}
            given["--mm-processor-kwargs"] = json.dumps({"size": size})
        switches = ["--enable-prefix-caching", "--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]
        return [*(str(part) for pair in given.items() for part in pair), *switches, *self.flags]
