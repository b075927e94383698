"""The prompts: one file per role and version, rendered strictly, named in every record by id and digest."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from court.digests import digest
from court.untrusted import SECRET_PREFIX, bare, secrets_in

ROLES = ("proposer", "advocate", "judge")
"""Those with a system message that every full trial sends. The other files add to their messages, but for ``guard``
and the expert witness's, which have system messages of their own."""
FILES = (*ROLES, "repair")
"""Prompts of a set. A folder may leave out the last: how to ask again is then said as the packaged set has it."""
EXPERT_PROMPTS = ("claim_finder", "expert")
"""Files with the expert witness's words."""
ADDED_PROMPTS = ("advocate_precedents", "judge_variants", "language", "text_alone")
"""Files with words that stand in messages of the roles beside those of a set, whichever set that is."""

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


@dataclass(frozen=True, slots=True)
class PromptSet:
    """The prompts of one trial.

    Attributes:
        name: Packaged version, or the last part of a folder's path.
        proposer: Words of the Proposer.
        advocate: Words of both advocates.
        judge: Words of the Judge.
        repair: Words by which a reply is asked for again.
    """

    name: str
    proposer: Prompt
    advocate: Prompt
    judge: Prompt
    repair: Prompt

    @property
    def by_file(self) -> dict[str, Prompt]:
        """Prompts by the names of their files."""
        return dict(zip(FILES, (self.proposer, self.advocate, self.judge, self.repair), strict=True))

    @property
    def digest(self) -> str:
        """Digest of all its words, for the record."""
        return digest({name: prompt.digest for name, prompt in self.by_file.items()})

    def contains_secret(self, reply: str, of_prompt: Prompt | None = None) -> bool:
        """True if a reply contains the secret of a system message, be it spaced out, escaped or in other letters.

        It finds instructions that are repeated as they stand, not a model that tells them in other words.

        Args:
            reply: Reply of a model.
            of_prompt: Prompt by which it was asked, where that may be none of the set: a guard's is not.
        """
        shown = [self.by_file[role] for role in ROLES] + ([of_prompt] if of_prompt else [])
        return not secrets_in(reply).isdisjoint(bare(prompt.secret) for prompt in shown)


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
