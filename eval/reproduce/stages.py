"""The stages of a paper, ready to run: their words, what they lack, and the figures of those that are finished."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from court.errors import BadRequest
from eval.datasets.card_draft import toml_of
from eval.datasets.items import Protocol
from eval.datasets.known import find_card
from eval.datasets.read import labels_dropped, read_split
from eval.reproduce.paper import Paper, StageSpec
from eval.runs.judge import judged_memes
from eval.session.directory import replace_file

STAGES = "stages"
"""Folder of the stages' figures, a file each, and of what a stage writes itself."""


@dataclass(frozen=True)
class StagePlan:
    """A stage with its words, ready to run."""

    spec: StageSpec
    words: tuple[str, ...]
    file: Path
    missing: str
    request: Mapping[str, Any]
    """Words, models and tables that its figures are of, wherever servers and the folder are."""
    content: str = ""

    def memes(self, limit: int | None, *, read: bool) -> int:
        """Memes or claims that it is about: those of the public data, or ``read`` from a split that is there.

        Raises BadRequest: The split can't be read.
        """
        samples = [one for table in self.request["tables"].values() for one in table.get("sample", ())]
        if samples and all("memes" in one for one in samples):
            named: int = sum(one["memes"] for one in samples)
            # A limit may be above what there is.
            return min(named, self.spec.items) if limit else named
        found, options = self.spec.items, dict(pairwise(self.words))
        if read and self.words[0] in ("ablate", "classify"):
            card = find_card(options["--dataset"])
            split, drops = options.get("--split", card.first_test()), "--drop-precedents" in self.words
            memes = read_split(card, Path(options["--data"]), split, task=options.get("--task", "")).memes
            dropped = labels_dropped(card, [Protocol(options["--protocol"])]) if drops else ()
            found = len(judged_memes(memes, limit, 0, dropped))
        return min(found, limit or found)

    def stored(self) -> Any:
        """Its figures, if it has finished. Raises BadRequest if those of other arguments are there."""
        try:
            found = json.loads(self.file.read_text("utf-8"))
        except FileNotFoundError:
            return None
        figures = found.pop("figures")
        if found == self.request:
            return figures
        # Compared anew, as it costs no call: there may be more to compare.
        if not self.spec.calls[1]:
            return None
        raise BadRequest(
            f"{self.file} is of another reproduction: memecourt-eval {' '.join(found['command'])}, with "
            f"{json.dumps(found['models'])}. Name another --out, or give the same options.",
            reason="RUN_DIFFERS",
        )

    def store(self, figures: Any) -> None:
        """Keeps the figures of the finished stage."""
        replace_file(self.file, json.dumps({**self.request, "figures": figures}) + "\n")


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
    strangers = [name for name in models if all(name not in spec.models for spec in paper.stages)]
    for spec in paper.stages:
        if spec.served and not published:
            spec = spec.model_copy(update={"calls": spec.served})
        missing = [
            f"{data / name if data else name} is missing: {fetch}"
            for name, fetch in spec.needs.items()
            if data is None or not (data / name).exists()
        ]
        if unknown := [name for name in spec.models if name not in models]:
            others = f", but {', '.join(strangers)}" if strangers else ""
            missing.append(f"the file of models (--models) has no {', '.join(unknown)}{others}")
        named = models.get(spec.models[0], {}) if spec.models else {}
        reads_models = "{models}" in spec.command
        # Commands of a court have these from the settings: here they would be passed over without a word.
        unread = sorted({"api_key_env", "concurrency", "max_tokens", "within_s", "most_calls"} & named.keys())
        if unread and not reads_models:
            key = "; give its key as MEMECOURT_LLM__API_KEY" if "api_key_env" in unread else ""
            missing.append(f"leave {', '.join(unread)} out of [models.{spec.models[0]}], as its command has none{key}")
        # All models of an arena's file take part.
        used = {name: models[name] for name in (models if "arena" in spec.tables else spec.models) if name in models}
        started = dict.fromkeys(str(one["model"]) for one in used.values() if reads_models and not one.get("url"))
        if started and not spec.seeded:
            missing.append(f"its command starts no vLLM: give a url for {', '.join(started)}")
        missing += [f"it needs the stage {one}" for one in spec.after if one in lacking]
        if spec.among and len(set(spec.among) - lacking) < 2:
            missing.append("it needs two of the stages before it")
        lacking |= {spec.id} if missing else set()
        url = named.get("url") or ""
        own = {name: _limited({**table, **tables.get(name, {})}, limit) for name, table in spec.tables.items()}
        content = "".join(f"{name} = {toml_of(table)}\n" for name, table in {"models": models, **own}.items())
        filled = {
            "data": str(data or ""),
            "out": str(out / STAGES),
            "models": str(out / STAGES / f"{spec.id}.toml"),
            "url": url if isinstance(url, str) else ",".join(url),
            "model": str(named.get("model", "")),
            # For the store of calls: the same model at another address has the same replies.
            "server": str(named.get("server") or named.get("model", "")),
        }
        absent = {f"{{out}}/{one}-run" for one in lacking.intersection(spec.among)}
        words = (*(word for word in spec.command if word not in absent), *(spec.published if published else ()))
        words += tuple(more) if "{server}" in words else ()
        words += ("--seed", str(seed)) if spec.seeded else ()
        names_memes = any("sample" in table for table in own.values())
        words += ("--limit", str(limit)) if limit and spec.seeded and not names_memes else ()
        elsewhere = {**filled, "out": "STUDY", "models": "MODELS"}
        request = {
            "command": [_filled(word, elsewhere) for word in words],
            "models": {name: one["model"] for name, one in used.items()},
            "tables": json.loads(json.dumps(own)),
        }
        place = ("--llm-url", "{url}", "--model", "{model}") if url else ("--vllm", "{model}")
        served = (*place, "--server-name", "{server}")
        words = tuple(chain.from_iterable(served if word == "{server}" else (word,) for word in words))
        words += tuple(word for model in started for word in ("--vllm", model))
        plans.append(
            StagePlan(
                spec,
                tuple(_filled(word, filled) for word in words),
                out / STAGES / f"{spec.id}.json",
                missing="; ".join(missing),
                request=request,
                content=content.replace("{data}", filled["data"]) if reads_models else "",
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
