"""Variables of the environment that look like settings and are none."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from functools import cache

from pydantic import BaseModel

from serving.settings import Settings

_PREFIX = "memecourt_"
_OTHERS = ("token", "config", "encoder_weights", "queue", "queue_metrics", "reader_models_url", "traceback")
"""Names of variables that are read elsewhere than in the settings, and have a likeness to one."""
_LIKENESS = 0.85
"""Of two names from 0 to 1, from which on one is taken for the other's misspelling. Below it, a variable is taken for
something that others put there, such as the ``MEMECOURT_SERVICE_HOST`` of Kubernetes."""


def misspelled_variables() -> dict[str, str]:
    """Returns variables without effect whose names are nearly a setting's, each with the variable of that setting.

    What follows a setting with ``__`` is checked with the settings, where an unknown name is an error.
    """
    names = _names()
    found = {}
    for variable in os.environ:
        name = variable.lower().removeprefix(_PREFIX)
        if name == variable.lower() or name in _OTHERS or name.partition("__")[0] in names:
            continue
        if near := difflib.get_close_matches(name, names, n=1, cutoff=_LIKENESS):
            found[variable] = f"{_PREFIX}{near[0]}".upper()
    return found


@cache
def _names() -> tuple[str, ...]:
    return tuple(_names_of(Settings))


def _names_of(model: type[BaseModel], before: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield before + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _names_of(field.annotation, f"{before}{name}__")
