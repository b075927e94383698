"""Presets: named sets of settings that come with the package, each value with where it is from."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import JsonValue

from court.digests import digest
from court.errors import BadRequest
from court.values import Value

Source = Literal["as published", "not said"]
"""Origin of a value: what the preset follows says so, or leaves it open, so that it is ours."""


class _Sourced(Value):
    source: Source

    @property
    def source_words(self) -> str:
        """Origin of the value, as people are shown it."""
        return "not said; ours" if self.source == "not said" else self.source


class PresetValue(_Sourced):
    """One setting of a preset."""

    setting: str
    """Its name, with a dot between a table and its setting."""
    value: JsonValue
    why: str


class PresetRemark(_Sourced):
    """Something that a preset follows and that is no setting."""

    thing: str
    paper: str
    here: str


class Preset(Value):
    """A named set of settings."""

    id: str
    what: str
    values: tuple[PresetValue, ...]
    others: tuple[PresetRemark, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 of all of it, as ``sha256:…``."""
        return digest(self.model_dump(mode="json"))

    def settings(self, **overrides: Any) -> dict[str, Any]:
        """The values as arguments of :class:`serving.settings.Settings`.

        Args:
            overrides: Settings that go before the preset's: plain ones replace them, tables are merged.
        """
        values: dict[str, Any] = {}
        for each in self.values:
            table, dot, name = each.setting.partition(".")
            if dot:
                values.setdefault(table, {})[name] = each.value
            else:
                values[table] = policy_named(str(each.value)) if table == "policy" else each.value
        for name, value in overrides.items():
            if value is not None:
                values[name] = {**values.get(name, {}), **value} if isinstance(value, dict) else value
        return values


def policy_named(name: str) -> Path:
    """Path of a policy that comes with the package."""
    return Path(str(files("court"))) / "policies" / f"{name}.toml"


def preset_names() -> tuple[str, ...]:
    """Names of all presets."""
    return tuple(sorted(each.name.removesuffix(".toml") for each in files(__name__).iterdir() if ".toml" in each.name))


def load_preset(name: str) -> Preset:
    """A preset by its name. Raises BadRequest, which names those that there are."""
    # Only names from the list: a name must not lead to a file elsewhere.
    if name not in preset_names():
        raise BadRequest(f"There is no preset {name!r}. There are: {', '.join(preset_names())}.", field="preset")
    return Preset.model_validate(tomllib.loads((files(__name__) / f"{name}.toml").read_text("utf-8")))
