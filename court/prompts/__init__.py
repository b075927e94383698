"""Prompts: one file per role and version, rendered strictly, identified in every record by id and digest.

Everything from a meme, a precedent or a model is material, never an instruction. It appears only in the user message,
inside a fence with an unpredictable mark, with anything that could become a control token of a model broken up.
"""

from __future__ import annotations

import re
import secrets
import tomllib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from court.digests import digest

# Every control token of the Qwen, Llama, Gemma, Phi, DeepSeek and GLM families and every tag such as <think> or
# <tool_call> begins with an angle bracket, also one that only appears after Unicode normalisation.
_ANGLES = str.maketrans({"<": "‹", "＜": "‹", "﹤": "‹", "≮": "‹"})
# All line ends, which must not be dropped, or the words on both sides would be joined.
_LINE_ENDS = re.compile("\r\n|[\r\v\f\x85\u2028\u2029]")
# Invisible characters: control and format characters, lone surrogates, private use, and all others that Unicode calls
# default ignorable (fillers, joiners, variation selectors, tags). Line feed and tab stay.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5"
    "\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ud800-\udfff\ue000-\uf8ff\ufe00-\ufe0f\ufeff\uffa0"
    "\ufff0-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff\U000f0000-\U0010ffff]"
)
# Mistral's, BERT's, GLM's and Kimi's control tokens: [INST], [/INST], [CLS], [gMASK], [control_8], [|user|] … Lists
# stay as they are: a model that is shown its own JSON again must find it there.
_SQUARE = re.compile(r'[\[［﹇]([^\s"\[\]［］﹇﹈]+)[\]］﹈]')
# Replaces a mark that was removed. It is not part of any mark, so the text around it can't join into another one.
_GAP = "·"

SECRET_PREFIX = "memecourt-"
"""Prefix of a prompt's secret (:attr:`court.prompts.Prompt.secret`), which 16 hex digits follow."""
# Its characters may be separated by anything but letters and digits, as a model may spell it out.
_SECRET = re.compile(r"[\W_]*".join("memecourt") + r"(?:[\W_]*[0-9a-f]){16}", re.IGNORECASE)
_ESCAPED = re.compile(r"\\(?:u([0-9a-fA-F]{4})|[bfnrt])")  # as JSON does it
_BETWEEN = re.compile(r"[\W_]+")


def secrets_in(text: str) -> set[str]:
    """Finds strings in the form of a prompt's secret in a text, also spaced out, escaped or in other letters."""
    return {bare(match[0]) for match in _SECRET.finditer(_spelled(text))}


def bare(text: str) -> str:
    """Returns the letters and digits of a text in lower case, by which secrets are compared."""
    return _BETWEEN.sub("", text).lower()


def _spelled(text: str) -> str:
    return unicodedata.normalize("NFKC", _ESCAPED.sub(lambda match: chr(int(match[1] or "20", 16)), text))


def neutralise(text: str) -> str:
    """Returns the text with everything broken up that could become a control token."""
    # Opening angle brackets become ``‹``, square brackets around a single word round ones, and invisible characters
    # (which could hide either from us but not from a tokeniser) and lone surrogates are removed. So is anything like a
    # prompt's secret, so that an author who knows it can't make a model appear to leak it.
    safe = _without_control(text)
    # Repeated, as the unescaped text may contain further escapes with another secret.
    while _SECRET.search(spelled := _spelled(safe)):
        # Continues with the normalised form, as escapes and full-width letters may hide where the secret begins and
        # ends.
        safe = _without_control(_SECRET.sub("(secret)", spelled))
    return safe


def _without_control(text: str) -> str:
    # The order matters: line ends first, as carriage returns are among the invisible characters; brackets last, as an
    # invisible character in a bracketed word would hide it from _SQUARE.
    visible = _INVISIBLE.sub("", _LINE_ENDS.sub("\n", text))
    return _SQUARE.sub(r"(\1)", visible.translate(_ANGLES))


class Fence:
    """Fence around the untrusted text of one trial."""

    def __init__(self, mark: str | None = None) -> None:
        """Makes a fence; ``mark`` is None for a fresh random one, and set only to compare messages."""
        self._mark = mark or secrets.token_hex(8)

    @property
    def mark(self) -> str:
        """Mark in the fence's begin and end lines."""
        return self._mark

    def around(self, text: str) -> str:
        """Returns the neutralised text between begin and end lines, without the mark, so that it can't fake them."""
        # Authors of memes can't know the mark, but a model that was shown it may repeat it.
        inside = neutralise(text)
        # A mark in full-width letters would be read as the mark too. The search uses no regex: it could not be reused
        # in the next trial, and compiling takes longer than it saves.
        folded = unicodedata.normalize("NFKC", inside)
        if self._mark.lower() in folded.lower():
            # Neutralised again: normalisation turns full-width angle brackets into those of control tokens.
            inside = re.sub(re.escape(self._mark), _GAP, neutralise(folded), flags=re.IGNORECASE)
        return f"[begin {self._mark}]\n{inside}\n[end {self._mark}]"


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
            that system messages are the same in all trials; untrusted text can't contain it (court.prompts).
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
