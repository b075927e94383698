"""Settings of the service: what is not about a trial but about where and how trials are held."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_data_path
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from court.settings import TrialSettings


def _cores() -> int:
    """Processors that this process may use; fewer than the machine's in a container."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Settings(BaseSettings):
    """Each can be given in the environment as ``MEMECOURT_…``, those of a trial as ``MEMECOURT_TRIAL__…``."""

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
    trial: TrialSettings = Field(default_factory=TrialSettings)

    @property
    def docket_path(self) -> Path:
        """The file of the docket."""
        return self.docket or self.home / "docket.sqlite"
