"""Agents as data: a task of a prompt, and the form of its reply.

An agent is asked as a role of a trial is (:class:`court.roles.Speaker`): strictly parsed, with one repair request that
names the fault. Cache and budget stand behind the speaker's model. Prompts are files next to the code that uses them,
as in :mod:`court.prompts`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Generic, TypeVar

from court.deadline import Deadline
from court.events import Role
from court.meme import Frame
from court.messages import Messages, apart
from court.prompts import Prompt
from court.replies import UnusableReply
from court.roles import RoleModel, RoleReply, Speaker
from court.untrusted import Fence

T = TypeVar("T")
_PATIENCE_S = 86_400.0
"""Seconds that a call may take with its wait for a slot; the model's own time is limited where it is called."""


@cache
def load(package: str, name: str, version: int = 1) -> Prompt:
    """Loads the prompt ``<name>.<version>.toml`` of a package. Raises FileNotFoundError if there is none."""
    return Prompt(tomllib.loads((files(package) / f"{name}.{version}.toml").read_text("utf-8")))


@dataclass(frozen=True, slots=True)
class Agent(Generic[T]):
    """One task of a prompt.

    Attributes:
        parse: Parses a reply; raises UnusableReply.
        schema: JSON schema of the reply; None for free text.
        system: System message; that of the prompt if empty. It contains trusted text only, nothing from a meme.
    """

    prompt: Prompt
    task: str
    parse: Callable[[str], T]
    schema: dict[str, Any] | None = None
    system: str = ""

    def messages(self, parts: Sequence[str | Frame]) -> Messages[Frame]:
        """Returns the messages of a call; ``parts`` include the task itself, and untrusted text in a fence."""
        system = self.system or self.prompt.system()
        return Messages(prompt=self.prompt, task=self.task, system=system, parts=apart(parts), schema=self.schema)

    async def ask(self, speaker: Speaker, parts: Sequence[str | Frame], role: Role = Role.JUDGE) -> RoleReply[T]:
        """Asks a model, and once more if its reply is unusable. Raises as :meth:`court.roles.Speaker.say`."""

        def read(text: str, _: bool) -> T:
            if not text.strip():
                raise UnusableReply("REPLY_EMPTY", "it was empty")
            return self.parse(text)

        return await speaker.say(role, self.messages(parts), read)


def speaker_without_deadline(model: RoleModel, fence: Fence, reply_chars: int = 0) -> Speaker:
    """Returns a speaker whose calls nobody waits for; see :class:`court.roles.Speaker`."""
    return Speaker(model=model, fence=fence, deadline=Deadline(None, _PATIENCE_S), reply_chars=reply_chars, batch=True)
