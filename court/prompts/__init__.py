"""The prompts: one file per role and version, rendered strictly, named in every record by id and digest."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from court.digests import digest
from court.untrusted import SECRET_PREFIX

ROLES = ("proposer", "advocate", "judge")
"""Those with a system message that every full trial sends. The other files add to their messages, but for ``guard``
and the expert witness's, which have system messages of their own."""
EXPERT_PROMPTS = ("claim_finder", "expert")
"""Files with the expert witness's words."""

_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")


class Prompt:
    """The words of one role.

    Attributes:
        id: Role and version, ``judge/1``.
        digest: SHA-256 of all its words.
        content: Content of its file.
        secret: Stands in the system message, which says never to write it. It follows from the digest, so that a
            system message stays the same from trial to trial; what is untrusted can't show it (court.untrusted).
    """

    def __init__(self, content: Mapping[str, Any], *, optional: Mapping[str, frozenset[str]] | None = None) -> None:
        """Takes the words as they are.

        Args:
            content: Content of the file.
            optional: Placeholders that a task, or ``system``, need not name; where it does not, values are left out.
        """
        self.content = dict(content)
        self.id = f"{content['id']}/{content['version']}"
        self.digest = digest(dict(content))
        self.secret = SECRET_PREFIX + digest(f"secret of {self.digest}").removeprefix("sha256:")[:16]
        self._system: str = content["system"]
        self._tasks: Mapping[str, str] = content["tasks"]
        self._optional = optional or {}
        self._stances: Mapping[str, str] = content.get("stances", {})

    def system(self, **values: str) -> str:
        """The system message. Nothing of a meme may be among the values: they are the policy and the stance."""
        # The secret comes last, so that no value of that name replaces it.
        return render(self._system, {**self._named("system", self._system, values), "secret": self.secret})

    def stance(self, name: str) -> str:
        """The words for a stance. Raises KeyError if there are none."""
        return self._stances[name].strip()

    def task(self, name: str, **values: str) -> str:
        """A task with its values put in. Raises KeyError or ValueError as :func:`render`."""
        return render(self._tasks[name], self._named(name, self._tasks[name], values))

    def _named(self, part: str, template: str, values: Mapping[str, str]) -> Mapping[str, str]:
        """The values without those that the part need not name and doesn't."""
        left_out = self._optional.get(part, frozenset()) - placeholders_in(template)
        return {name: value for name, value in values.items() if name not in left_out}


def placeholders_in(template: str) -> set[str]:
    """Names of the values that a template asks for."""
    return set(_PLACEHOLDER.findall(template))


def render(template: str, values: Mapping[str, str]) -> str:
    """Puts values in place of ``{{name}}``, all in one pass: what a value contains is never looked at again.

    Raises:
        KeyError: The template names a value that is not given.
        ValueError: A value is given that the template does not name.
    """
    named = placeholders_in(template)
    if missing := named - values.keys():
        raise KeyError(f"the prompt needs {', '.join(sorted(missing))}")
    if unknown := values.keys() - named:
        raise ValueError(f"the prompt does not name {', '.join(sorted(unknown))}")
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template).strip()


@cache
def load(role: str, version: int = 1) -> Prompt:
    """The prompt of a role. Raises FileNotFoundError if there is no such version."""
    return Prompt(tomllib.loads((files(__name__) / f"{role}.{version}.toml").read_text("utf-8")))
