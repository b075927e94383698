"""The stages of a paper, ready to run: their words, what they lack, and the figures of those that are finished."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from court.errors import BadRequest
from eval.reproduce.paper import Paper, StageSpec

STAGES = "stages"
"""Folder of the stages' figures, a file each, and of what a stage writes itself."""


@dataclass(frozen=True)
class StagePlan:
    """A stage with its words, ready to run."""

    spec: StageSpec
    words: tuple[str, ...]
    file: Path
    missing: str
    content: str = ""
    url: str = ""
    tables: Mapping[str, Any] = field(default_factory=dict)

    @property
    def command(self) -> list[str]:
        """Its words but for the server's address, at which another server may be next time."""
        return ["URL" if self.url and word == self.url else word for word in self.words]

    def stored(self) -> Any:
        """Its figures, if it has finished. Raises BadRequest if those of other arguments are there."""
        if not self.file.exists():
            return None
        found = json.loads(self.file.read_text("utf-8"))
        if (found["command"], found["tables"]) != (self.command, self.tables):
            raise BadRequest(
                f"{self.file} is of another reproduction: memecourt-eval {' '.join(found['command'])}. Name another "
                "--out, or give the same options.",
                reason="RUN_DIFFERS",
            )
        return found["figures"]

    def store(self, figures: Any) -> None:
        """Keeps the figures of the finished stage."""
        content = {"command": self.command, "tables": self.tables, "figures": figures}
        self.file.write_text(json.dumps(content) + "\n", "utf-8")


def plan_stages(
    paper: Paper,
    out: Path,
    data: Path | None,
    models: Mapping[str, Mapping[str, Any]],
    *,
    tables: Mapping[str, Mapping[str, Any]],
    published: bool = True,
    seed: int = 0,
    limit: int | None = None,
    more: Sequence[str] = (),
) -> tuple[StagePlan, ...]:
    """The stages in order, with what each lacks.

    Args:
        models: Tables of the file of models, by name.
        tables: Other tables of that file; their values take precedence over the paper's.
        more: Further words of each stage that runs a court.
    """
    plans: list[StagePlan] = []
    lacking: set[str] = set()
    for spec in paper.stages:
        missing = [
            f"{data / name if data else name} is missing: {fetch}"
            for name, fetch in spec.needs.items()
            if data is None or not (data / name).exists()
        ]
        if unknown := [name for name in spec.models if name not in models]:
            missing.append(f"the file of models (--models) has no {', '.join(unknown)}")
        named = models.get(spec.models[0], {}) if spec.models else {}
        # Commands of a court have their key from the settings: another one would be left out without a word.
        if named.get("api_key_env") and "{models}" not in spec.command:
            missing.append("give its key as MEMECOURT_LLM__API_KEY, and no api_key_env in the file of models")
        missing += [f"it needs the stage {one}" for one in spec.after if one in lacking]
        if spec.among and len(set(spec.among) - lacking) < 2:
            missing.append("it needs two of the stages before it")
        lacking |= {spec.id} if missing else set()
        url = named.get("url") or ""
        own = {name: _limited({**table, **tables.get(name, {})}, limit) for name, table in spec.tables.items()}
        content = "".join(f"{name} = {_toml(table)}\n" for name, table in {"models": models, **own}.items())
        filled = {
            "data": str(data or ""),
            "out": str(out / STAGES),
            "models": str(out / STAGES / f"{spec.id}.toml"),
            "url": url if isinstance(url, str) else ",".join(url),
            "model": str(named.get("model", "")),
        }
        absent = {f"{{out}}/{one}-run" for one in lacking.intersection(spec.among)}
        words = (*(word for word in spec.command if word not in absent), *(spec.published if published else ()))
        if "{server}" in words:
            served = ("--llm-url", "{url}", "--model", "{model}") if url else ("--vllm", "{model}")
            place = words.index("{server}")
            # Named for the store of calls: the same model at another address has the same replies.
            words = (*words[:place], *served, "--server-name", "{model}", *words[place + 1 :], *more)
        words += ("--seed", str(seed)) if spec.seeded else ()
        names_memes = any("sample" in table for table in own.values())
        words += ("--limit", str(limit)) if limit and spec.seeded and not names_memes else ()
        plans.append(
            StagePlan(
                spec,
                tuple(_filled(word, filled) for word in words),
                out / STAGES / f"{spec.id}.json",
                missing="; ".join(missing),
                content=content.replace("{data}", filled["data"]) if "{models}" in spec.command else "",
                url=filled["url"],
                tables=json.loads(json.dumps(own)),
            )
        )
    return tuple(plans)


def _limited(table: Mapping[str, Any], limit: int | None) -> Mapping[str, Any]:
    """The table with the memes that a limit leaves, divided among its data sets."""
    sets = table.get("sample", ())
    if not limit or not sets:
        return table
    each = -(-limit // len(sets))
    return {**table, "sample": [{**one, "memes": min(each, one.get("memes", each))} for one in sets]}


def _filled(word: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: values[found[1]], word)


def _toml(value: Any) -> str:
    """A value in TOML, tables in one line."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{json.dumps(key)} = {_toml(one)}' for key, one in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value)
