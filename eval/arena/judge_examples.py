"""Judgements of an arena as training data for a custom judge, split by model family and by meme.

The recipe is ProBench's (arXiv 2503.06885, section on local evaluators): a small model learns a teacher's reasons and
verdicts. It is evaluated on held-out model families and memes (:mod:`eval.arena.distilled`).
"""

import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from court.errors import BadRequest
from court.meme import Frame
from court.prompts import Fence
from eval.arena.events import Answered, ArenaValue, Event, Judged, TaskFormulated
from eval.arena.folder import ArenaFolder, ArenaManifest
from eval.arena.speakers import Scene, answers_of, guidelines_of, prompt_of
from eval.arena.words import Setting, Verdict, words_of
from eval.models.samples import ShownMeme
from eval.session.directory import replace_lines
from retrieval.library.sources import NOT_FOR_LIBRARIES

Part = Literal["train", "test"]
MANIFEST, PICTURES = "manifest.json", "pictures"
MARK: Literal["judged by memecourt-eval arena"] = "judged by memecourt-eval arena"
"""What each line says of itself: it holds texts of memes, and no library may take it in."""
_HELD_OUT_SHARE = 0.1
"""Share of memes that are for testing alone."""
_MIRRORED = {Verdict.A_FAR: Verdict.B_FAR, Verdict.A: Verdict.B, Verdict.B: Verdict.A, Verdict.B_FAR: Verdict.A_FAR}
_LABEL = re.compile(r"\b[AB]\b")
_ARTICLE = re.compile(r"(?:^|[.!?:;\"“]\s*)A\b(?! ?[,>=<])")
"""An A at the beginning of a sentence, which may be the article."""


class JudgeExample(BaseModel):
    """One comparison with its answer, as chat messages; one line of ``train.jsonl`` or ``test.jsonl``."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    mark: Literal["judged by memecourt-eval arena"] = Field(default=MARK, alias=NOT_FOR_LIBRARIES)
    meme: str
    task: int
    a: str
    """Whose answer is shown first."""
    b: str
    teacher: str
    mirrored: bool
    """Whether the answers stand in the other order than the teacher saw them in."""
    longer: Literal["A", "B", "neither"]
    """Whose answer has more words: what a judge has to beat who looks at nothing else."""
    keys: tuple[str, ...]
    """Names of the criteria, the verdict overall last."""
    levels: Literal[3, 5]
    # The pattern keeps a line edited by hand from naming a file outside the folder.
    pictures: tuple[Annotated[str, Field(pattern=r"^[0-9a-f]{64}\.png$")], ...]
    """Names of the picture's frames below ``pictures``."""
    messages: tuple[dict[str, Any], ...]
    """System, user and assistant; pictures first, as ``{"type": "image", "image": name}``."""


class JudgeExamplesManifest(ArenaValue):
    """Description of a folder of examples."""

    format: int = 1
    arena: str
    teachers: tuple[str, ...]
    targets: tuple[str, ...]
    families: dict[str, str]
    """Family of each target; its own name where the file of models gives none."""
    held_out: tuple[str, ...]
    """Families of which nothing is in the training part."""
    held_memes: tuple[str, ...]
    """Memes of which nothing is in the training part."""
    examples: dict[Part, int]
    skipped: dict[str, int]
    """Judgements that gave no example, by why."""
    seed: int


@dataclass(frozen=True, slots=True)
class JudgeExamples:
    """Examples of both parts, with the pictures that they refer to."""

    manifest: JudgeExamplesManifest
    parts: Mapping[Part, tuple[JudgeExample, ...]]
    pictures: Mapping[str, bytes]

    def write(self, folder: Path) -> None:
        """Writes the folder, the manifest last: a folder without one is incomplete."""
        (folder / PICTURES).mkdir(parents=True, exist_ok=True)
        for name, png in self.pictures.items():
            (folder / PICTURES / name).write_bytes(png)
        for part, examples in self.parts.items():
            replace_lines(folder / f"{part}.jsonl", examples)
        (folder / MANIFEST).write_text(self.manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")


def read_examples(folder: Path, part: Part) -> tuple[JudgeExamplesManifest, tuple[JudgeExample, ...]]:
    """Reads a part of a folder of examples. Raises BadRequest if it can't be read."""
    try:
        manifest = JudgeExamplesManifest.model_validate_json((folder / MANIFEST).read_bytes())
        lines = (folder / f"{part}.jsonl").read_text("ascii").splitlines()
        return manifest, tuple(JudgeExample.model_validate_json(line) for line in lines)
    except (OSError, ValueError, ValidationError) as error:
        raise BadRequest(
            f"{folder} can't be read as examples for a judge ({type(error).__name__}). memecourt-eval arena "
            "export-judge writes such a folder.",
            reason="EXAMPLES_UNREADABLE",
        ) from None


def judge_examples(
    manifest: ArenaManifest,
    events: Sequence[Event],
    memes: Mapping[str, ShownMeme],
    *,
    hold_out: Collection[str],
    seed: int = 0,
) -> JudgeExamples:
    """Makes training and test examples from an arena's judgements.

    Everything about a model of a held-out family or a held-out meme is for testing. Guidelines are the unavoidable
    exception: they were fused from all answers, and the judges saw them too.

    Raises BadRequest: A family is not in the arena, memes are missing, or a part would be empty.
    """
    settings = manifest.settings
    # A model without a family is its own family, so that it can be held out by its name.
    families = {name: manifest.models[name].family or name for name in settings.targets}
    if unknown := sorted({*hold_out}.difference(families.values())):
        there = ", ".join(sorted({*families.values()}))
        raise BadRequest(f"The arena has no family {', '.join(unknown)}. It has: {there}.", reason="ARENA_SETTINGS")
    judged = [e for e in events if isinstance(e, Judged) and e.study == "arena"]
    ArenaFolder.require_memes((event.meme for event in judged), memes)
    # Sorted, so that the draw depends on the seed and the memes, not on the order of events.
    drawn_from = sorted({event.meme for event in judged})
    chance = random.Random(f"held memes {seed}")
    reserved = frozenset(chance.sample(drawn_from, round(_HELD_OUT_SHARE * len(drawn_from))))
    writer = _Writer(manifest, events, memes)
    parts: dict[Part, list[JudgeExample]] = {"train": [], "test": []}
    skipped: Counter[str] = Counter()
    for event in judged:
        # If either answer is held out: such a comparison would teach how a held-out family's answers look.
        apart = event.meme in reserved or bool({families[event.a], families[event.b]} & set(hold_out))
        # Both orders, so that an answer's position teaches nothing.
        for mirrored in (False, True):
            # Tests need verdicts only; training must not learn reasons that refer to the wrong answer.
            made = writer.example(event, mirrored=mirrored, with_reasons=not apart)
            if isinstance(made, str):
                skipped[made] += 1
            else:
                parts["test" if apart else "train"].append(made)
    if empty := [part for part, examples in parts.items() if not examples]:
        raise BadRequest(
            f"There would be no example for {' and '.join(empty)}. Hold out fewer families, or hold a larger arena.",
            reason="EXAMPLES_MISSING",
        )
    return JudgeExamples(
        manifest=JudgeExamplesManifest(
            arena=manifest.name,
            teachers=settings.judges,
            targets=settings.targets,
            families=families,
            held_out=tuple(sorted(set(hold_out))),
            held_memes=tuple(sorted(reserved)),
            examples={part: len(examples) for part, examples in parts.items()},
            skipped=dict(skipped),
            seed=seed,
        ),
        parts={part: tuple(examples) for part, examples in parts.items()},
        pictures=writer.pictures,
    )


def mirrored_reasons(why: str) -> str | None:
    """Swaps the names of the two answers in reasons; None if an A may be the article of a sentence."""
    if _ARTICLE.search(why):
        return None
    return _LABEL.sub(lambda match: "B" if match[0] == "A" else "A", why)


class _Writer:
    """Rebuilds what judges were shown from the record of an arena."""

    def __init__(self, manifest: ArenaManifest, events: Sequence[Event], memes: Mapping[str, ShownMeme]) -> None:
        self._settings = manifest.settings
        self._memes = memes
        self._prompt = prompt_of("judge")
        self.pictures: dict[str, bytes] = {}
        self._answers, self._guidelines = answers_of(events), guidelines_of(events)
        self._rounds = {(e.meme, e.task): e.rounds for e in events if isinstance(e, TaskFormulated)}
        answered = (event for event in events if isinstance(event, Answered))
        self._words = {(e.meme, e.task, e.target): e.style.words for e in answered}

    def example(self, event: Judged, *, mirrored: bool, with_reasons: bool) -> JudgeExample | str:
        """Returns the example of a judgement, or the reason why there is none."""
        key = (event.meme, event.task)
        if event.setting not in (Setting.FUSED, Setting.NONE):
            return "the reference is not in the record"
        first, second = (event.b, event.a) if mirrored else (event.a, event.b)
        why = mirrored_reasons(event.why) if mirrored else event.why
        # The test part does not need reasons, so such a judgement is still an example there.
        if why is None and with_reasons:
            return "its reasons could not be mirrored"
        verdicts = {k: _MIRRORED.get(v, v) if mirrored else v for k, v in event.verdicts.items()}
        spelt = {verdict: word for word, verdict in words_of(self._settings.levels).items()}
        reply = {"why": why or "–", **{name: spelt[verdicts[name]] for name in self._settings.dimensions}}
        # A different fence for each example: a model that learned a single one would not recognise others.
        mark = hashlib.sha256(f"{event.meme} {event.task} {first} {second}".encode()).hexdigest()[:16]
        parts = Scene(self._memes[event.meme], Fence(mark)).comparison(
            self._prompt,
            self._rounds[key],
            self._guidelines[key] if event.setting is Setting.FUSED else None,
            (self._answers[*key, first], self._answers[*key, second]),
            settings=self._settings,
        )
        pictures = tuple(self._add_picture(part) for part in parts if isinstance(part, Frame))
        text = "\n\n".join(part for part in parts if isinstance(part, str))
        words = self._words[*key, first] - self._words[*key, second]
        return JudgeExample(
            meme=event.meme,
            task=event.task,
            a=first,
            b=second,
            teacher=event.judge,
            mirrored=mirrored,
            longer="A" if words > 0 else "B" if words < 0 else "neither",
            keys=self._settings.dimensions,
            levels=self._settings.levels,
            pictures=pictures,
            messages=(
                {"role": "system", "content": [{"type": "text", "text": self._prompt.system()}]},
                {
                    "role": "user",
                    "content": [
                        *({"type": "image", "image": name} for name in pictures),
                        {"type": "text", "text": text},
                    ],
                },
                # Not escaped, or the student would learn to write escapes instead of letters.
                {"role": "assistant", "content": [{"type": "text", "text": json.dumps(reply, ensure_ascii=False)}]},
            ),
        )

    def _add_picture(self, frame: Frame) -> str:
        # Named by content, so that a picture shown in many comparisons is stored once.
        name = f"{hashlib.sha256(frame.png).hexdigest()}.png"
        self.pictures[name] = frame.png
        return name
