"""Options of commands, generated from the specification whose fields they set.

A field's annotation names its option, so that name, bounds and help stand once, beside the stored field::

    limit: Annotated[int | None, Field(ge=1), Option("Judge a sample of this size.")] = None
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import click
from pydantic import BaseModel

from serving.cli.common import FiniteRange, with_options

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Option:
    """Option that sets a field."""

    help: str
    flag: str = ""
    """Name of the option, if it is not that of the field."""
    metavar: str | None = None
    exists: bool = False
    """True for a path of a file that has to exist."""


def spec_options(
    spec: type, *names: str, with_defaults: bool = False, **changed: Mapping[str, Any]
) -> Callable[[F], F]:
    """Adds the options of a specification's fields to a command; without a value each is None, False or empty.

    Args:
        with_defaults: True for options that have the default of their field; for models alone.
    """
    found = {name: attributes for name, attributes in _options(spec) if not names or name in names}
    options = []
    for name in names or found:
        flag, attributes = found[name]
        if with_defaults:
            assert issubclass(spec, BaseModel), "a dataclass has no fields of a model"
            attributes["default"] = spec.model_fields[name].default
        attributes |= changed.get(name, {})
        if "default" in attributes:
            attributes |= {"show_default": True, "help": attributes["help"].partition(" [default: ")[0]}
        options.append(click.option(flag, name, **attributes))
    return with_options(*options)


def flags_of(spec: type) -> dict[str, str]:
    """Option of each field that has one, such as ``--limit``."""
    return {name: flag for name, (flag, _) in _options(spec)}


def _options(spec: type) -> Iterator[tuple[str, tuple[str, dict[str, Any]]]]:
    for name, hint in get_type_hints(spec, include_extras=True).items():
        if get_origin(hint) is not Annotated:
            continue
        kind, *metadata = get_args(hint)
        for one in metadata:
            if isinstance(one, Option):
                attributes = {"help": one.help, "metavar": one.metavar, **_kind_of(kind, metadata)}
                if one.exists:
                    attributes["type"] = click.Path(path_type=Path, exists=True, dir_okay=False)
                yield name, (one.flag or f"--{name.replace('_', '-')}", attributes)


def _kind_of(annotation: Any, metadata: list[Any]) -> dict[str, Any]:
    """Attributes of click's option for values of a type."""
    # Without "| None", which every option may be.
    kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
    kind = annotation if get_origin(annotation) in (tuple, Literal) or not kinds else kinds[0]
    bounds = [bound for one in metadata for bound in getattr(one, "metadata", ())]
    least = next((bound.ge for bound in bounds if hasattr(bound, "ge")), None)
    most = next((bound.le for bound in bounds if hasattr(bound, "le")), None)
    if get_origin(kind) is tuple:
        # Texts are given one by one; all else as one text, with commas.
        return {"multiple": True} if get_args(kind)[0] is str else {}
    if kind is bool:
        return {"is_flag": True}
    if kind is int:
        return {"type": click.IntRange(least, most)}
    if kind is float:
        return {"type": FiniteRange(least, most)}
    if kind is Path:
        return {"type": click.Path(path_type=Path)}
    if get_origin(kind) is Literal:
        return {"type": click.Choice(list(get_args(kind)))}
    if issubclass(kind, Enum):
        return {"type": click.Choice([str(one.value).lower() for one in kind])}
    return {}
