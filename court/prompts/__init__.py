"""Prompts: one file per role and version, rendered strictly, identified in every record by id and digest."""

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
"""Roles whose system messages every full trial sends. Other files add to their messages, except ``guard`` and those of
the expert witness, which have system messages of their own."""
FILES = (*ROLES, "repair")
"""Prompts of a set. A folder may omit the last; the packaged repair prompt is then used."""
EXPERT_PROMPTS = ("claim_finder", "expert")
"""Prompt files of the expert witness."""
ADDED_PROMPTS = ("advocate_precedents", "checks", "judge_variants", "language", "text_alone")
"""Files with text that is added to messages of the roles, whichever set is used."""

_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")


class Prompt:
    """The prompt of one role.

    Attributes:
        secret: Canary in the system message, which tells the model never to write it. It is derived from the digest, so
            that system messages are the same in all trials; untrusted text can't contain it (court.untrusted).
    """

    def __init__(self, content: Mapping[str, Any], *, optional: Mapping[str, frozenset[str]] | None = None) -> None:
        """Takes the content as it is.

        Args:
            optional: Placeholders that a task, or ``system``, may omit; their values are then dropped.
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
        """Renders the system message. Values are policy and stance, never content of a meme."""
        # The secret comes last, so that no value of that name can replace it.
        return render(self._system, {**self._named("system", self._system, values), "secret": self.secret})

    def stance(self, name: str) -> str:
        """Returns the text of a stance. Raises KeyError if there is none."""
        return self._stances[name].strip()

    def opening(self, stance: str) -> str:
        """Returns the words with which a side's conclusion begins; empty if the prompt sets none."""
        return str(self.content.get("openings", {}).get(stance, ""))

    def text_alone(self, task: str) -> str:
        """Returns what stands in place of a meme's picture, or of its description, if there is none.

        Args:
            task: Task of the packaged words for sets that have none of their own.
        """
        return self.task("text_alone") if "text_alone" in self._tasks else load("text_alone").task(task)

    def task(self, name: str, **values: str) -> str:
        """Renders a task. Raises KeyError or ValueError as :func:`render`."""
        return render(self._tasks[name], self._named(name, self._tasks[name], values))

    def _named(self, part: str, template: str, values: Mapping[str, str]) -> Mapping[str, str]:
        """Returns the values without those whose optional placeholder the template omits."""
        left_out = self._optional.get(part, frozenset()) - placeholders_in(template)
        return {name: value for name, value in values.items() if name not in left_out}


@dataclass(frozen=True, slots=True)
class PromptSet:
    """The prompts of one trial.

    Attributes:
        name: Packaged version, or the last part of a folder's path.
    """

    name: str
    proposer: Prompt
    advocate: Prompt
    judge: Prompt
    repair: Prompt

    @property
    def by_file(self) -> dict[str, Prompt]:
        """Prompts by file name."""
        return dict(zip(FILES, (self.proposer, self.advocate, self.judge, self.repair), strict=True))

    @property
    def digest(self) -> str:
        """Digest of all prompts, for the record."""
        return digest({name: prompt.digest for name, prompt in self.by_file.items()})

    def contains_secret(self, reply: str, of_prompt: Prompt | None = None) -> bool:
        """True if a reply leaks the secret of a system message, even spaced out, escaped or in other letters.

        This detects verbatim leaks of instructions, not paraphrases.

        Args:
            of_prompt: Prompt of the request, if it may not be in the set, such as a guard's.
        """
        shown = [self.by_file[role] for role in ROLES] + ([of_prompt] if of_prompt else [])
        return not secrets_in(reply).isdisjoint(bare(prompt.secret) for prompt in shown)


def placeholders_in(template: str) -> set[str]:
    """Returns the names of a template's placeholders."""
    return set(_PLACEHOLDER.findall(template))


def render(template: str, values: Mapping[str, str]) -> str:
    """Replaces each ``{{name}}`` by its value in a single pass, so that placeholders within values are not expanded.

    Raises:
        KeyError: A value for a placeholder is missing.
        ValueError: A value has no placeholder.
    """
    named = placeholders_in(template)
    if missing := named - values.keys():
        raise KeyError(f"the prompt needs {', '.join(sorted(missing))}")
    if unknown := values.keys() - named:
        raise ValueError(f"the prompt does not name {', '.join(sorted(unknown))}")
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template).strip()


@cache
def load(role: str, version: int = 1) -> Prompt:
    """Loads the prompt of a role. Raises FileNotFoundError if there is no such version."""
    return Prompt(tomllib.loads((files(__name__) / f"{role}.{version}.toml").read_text("utf-8")))
