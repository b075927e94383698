"""Settings of the service: what is not about a trial but about where and how trials are held."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from platformdirs import user_data_path
from pydantic import BaseModel, ConfigDict, Field, SecretStr
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from court.errors import BadRequest
from court.events import Procedure
from court.settings import TrialSettings

CONFIG = "MEMECOURT_CONFIG"
"""Names the TOML file. Not a setting itself: it says where they are."""


def _cores() -> int:
    """Processors that this process may use; fewer than the machine's in a container."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class RoleSettings(BaseModel):
    """What one role has of its own; what it hasn't is that of all."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str | None = None
    model: str | None = None
    api_key: SecretStr | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)


class ModelSettings(RoleSettings):
    """The chat models of the full procedure: any server that speaks OpenAI's chat completions."""

    concurrency: int = Field(default=64, ge=1, le=100_000)
    """Calls in flight from which on nothing is asked ahead: at saturation a superfluous call costs a needed one."""
    roles: dict[Literal["proposer", "accuser", "defender", "judge"], RoleSettings] = Field(default_factory=dict)

    def of_role(self, role: Literal["proposer", "accuser", "defender", "judge"]) -> RoleSettings:
        """What holds for a role: its own where it has that, else what holds for all."""
        own = self.roles.get(role, RoleSettings())
        return RoleSettings(
            url=own.url or self.url,
            model=own.model or self.model,
            api_key=own.api_key or self.api_key,
            temperature=next((t for t in (own.temperature, self.temperature) if t is not None), 0.0),
        )


class Settings(BaseSettings):
    """All of them: options go before the environment (``MEMECOURT_…``, nested ``MEMECOURT_TRIAL__…``), that before the
    TOML file which ``MEMECOURT_CONFIG`` or ``--config`` names."""  # noqa: D205, D209

    model_config = SettingsConfigDict(env_prefix="MEMECOURT_", env_nested_delimiter="__", frozen=True, extra="forbid")

    home: Path = Field(default_factory=lambda: user_data_path("memecourt"))
    """Where docket and libraries are kept unless they are named."""
    docket: Path | None = None
    """The file of the docket; ``home/docket.sqlite`` if not given."""
    library: Path | None = None
    """The library of precedents; the starter library, made at first use in ``home``, if not given."""
    picture_workers: int = Field(default_factory=lambda: min(4, _cores()), ge=1, le=64)
    """Processes that decode pictures."""
    text_workers: int = Field(default_factory=lambda: max(1, min(4, _cores() // 2)), ge=1, le=64)
    """Processes that read text off pictures."""
    concurrent_trials: int = Field(default=32, ge=1, le=10_000)
    """Trials held at once; beyond, a caller is asked to come again."""
    grace: float = Field(default=20.0, ge=0, le=3600)
    """Seconds that running trials have to finish when the server is told to stop."""
    procedure: Procedure = Procedure.SUMMARY
    """How a meme is tried where nobody says."""
    policy: Path | None = None
    """The file of the policy; MemeCourt's own if not given."""
    llm: ModelSettings = Field(default_factory=ModelSettings)
    trial: TrialSettings = Field(default_factory=TrialSettings)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Options, environment, file; a file that is named must be there."""
        named = os.environ.get(CONFIG)
        if not named:
            return init_settings, env_settings
        if not Path(named).is_file():
            raise BadRequest(f"There is no file of settings at {named}.", reason="CONFIG_MISSING", field="config")
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, toml_file=named)

    @property
    def docket_path(self) -> Path:
        """The file of the docket."""
        return self.docket or self.home / "docket.sqlite"
