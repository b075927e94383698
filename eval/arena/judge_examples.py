"""Judgements of an arena as training data for a custom judge, split by model family and by meme.

The recipe is ProBench's (arXiv 2503.06885, section on local evaluators): a small model learns a teacher's reasons and
verdicts. It is evaluated on held-out model families and memes (:mod:`eval.arena.distilled`).
"""

import hashlib
import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from court.errors import BadRequest
from court.meme import Frame
from court.prompts import Fence
from eval.arena.agreement import judged_in
from eval.arena.events import ArenaValue, Event, Judged
from eval.arena.folder import ArenaFolder, ArenaManifest
from eval.arena.settings import ArenaSettings
from eval.arena.speakers import FixedQuestion, Scene, answers_of, guidelines_of, parse_verdicts, prompt_of, rounds_of
from eval.arena.words import OVERALL, Setting, Verdict, words_of
from eval.models.samples import ShownMeme
from eval.session.directory import replace_lines
from retrieval.library.sources import NOT_FOR_LIBRARIES

Part = Literal["train", "test"]
Comparison = tuple[str, int, str, str]
"""Meme, task, whose answer is shown first, and whose second."""
MANIFEST, PICTURES = "manifest.json", "pictures"
MARK: Literal["judged by memecourt-eval arena"] = "judged by memecourt-eval arena"
"""What each line says of itself: it holds texts of memes, and no library may take it in."""
_MIRRORED = {Verdict.A_FAR: Verdict.B_FAR, Verdict.A: Verdict.B, Verdict.B: Verdict.A, Verdict.B_FAR: Verdict.A_FAR}


class JudgeExample(BaseModel):
    """One comparison with its answer in TRL's format; one line of ``train.jsonl`` or ``test.jsonl``."""

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
    images: tuple[Annotated[str, Field(pattern=r"^[0-9a-f]{64}\.png$")], ...]
    """Names of the picture's frames below ``pictures``; they are shown before the user's text."""
    prompt: tuple[dict[str, str], dict[str, str]]
    """Messages of system and user, each with ``role`` and ``content``."""
    completion: tuple[dict[str, str]]
    """Message of the assistant: reasons and verdicts."""

    @property
    def comparison(self) -> Comparison:
        """Comparison that it is of; the same of all teachers."""
        return self.meme, self.task, self.a, self.b

    @property
    def verdict(self) -> Verdict:
        """Overall verdict that it teaches."""
        reply = parse_verdicts(self.completion[0]["content"], keys=self.keys, levels=self.levels)
        return reply.by_dimension[OVERALL]


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


def write_examples(
    folder: Path,
    manifest: ArenaManifest,
    events: Sequence[Event],
    memes: Mapping[str, ShownMeme],
    *,
    hold_out: Collection[str],
) -> JudgeExamplesManifest:
    """Writes training and test examples from an arena's judgements, each in both orders.

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
    judged = judged_in(events)
    ArenaFolder.require_memes((event.meme for event in judged), memes)
    # A tenth of the memes is for testing alone. Sorted, so that the draw depends on the seed and the memes, not on the
    # order of events.
    drawn_from = sorted({event.meme for event in judged})
    chance = random.Random(f"held memes {manifest.seed}")
    reserved = frozenset(chance.sample(drawn_from, round(0.1 * len(drawn_from))))
    rounds, answers, guidelines = rounds_of(events), answers_of(events), guidelines_of(events)
    parts: dict[Part, list[JudgeExample]] = {"train": [], "test": []}
    pictures: dict[str, bytes] = {}
    skipped: Counter[str] = Counter()
    # Both orders, so that an answer's position teaches nothing.
    for event, mirrored in itertools.product(judged, (False, True)):
        # If either answer is held out: such a comparison would teach how a held-out family's answers look.
        apart = event.meme in reserved or bool({families[event.a], families[event.b]} & set(hold_out))
        why = mirrored_reasons(event.why) if mirrored else event.why
        if event.setting not in (Setting.FUSED, Setting.NONE):
            skipped["the reference is not in the record"] += 1
            continue
        # The test part does not need reasons; training must not learn reasons that refer to the wrong answer.
        if why is None and not apart:
            skipped["its reasons could not be mirrored"] += 1
            continue
        key, meme = (event.meme, event.task), memes[event.meme]
        guideline = guidelines[key] if event.setting is Setting.FUSED else None
        made = _example(
            event, meme, answers, rounds=rounds[key], guideline=guideline, settings=settings, mirrored=mirrored, why=why
        )
        parts["test" if apart else "train"].append(made)
        pictures |= {_name_of(frame): frame.png for frame in meme.frames}
    if empty := [part for part, examples in parts.items() if not examples]:
        raise BadRequest(
            f"There would be no example for {' and '.join(empty)}. Hold out fewer families, or hold a larger arena.",
            reason="EXAMPLES_MISSING",
        )
    described = JudgeExamplesManifest(
        arena=manifest.name,
        teachers=settings.judges,
        targets=settings.targets,
        families=families,
        held_out=tuple(sorted(set(hold_out))),
        held_memes=tuple(sorted(reserved)),
        examples={part: len(examples) for part, examples in parts.items()},
        skipped=dict(skipped),
        seed=manifest.seed,
    )
    (folder / PICTURES).mkdir(parents=True, exist_ok=True)
    for name, png in pictures.items():
        (folder / PICTURES / name).write_bytes(png)
    for part, examples in parts.items():
        replace_lines(folder / f"{part}.jsonl", examples)
    # Last: a folder without a manifest is incomplete.
    (folder / MANIFEST).write_text(described.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return described


def _example(
    event: Judged,
    meme: ShownMeme,
    answers: Mapping[tuple[str, int, str], FixedQuestion],
    *,
    rounds: Sequence[str],
    guideline: FixedQuestion | None,
    settings: ArenaSettings,
    mirrored: bool,
    why: str | None,
) -> JudgeExample:
    """Rebuilds what a judge was shown, in one of the two orders, and what it replied."""
    names = (event.b, event.a) if mirrored else (event.a, event.b)
    first, second = (answers[event.meme, event.task, name] for name in names)
    prompt = prompt_of("judge")
    # A different fence for each example: a model that learned a single one would not recognise others.
    mark = hashlib.sha256(" ".join(map(str, (event.meme, event.task, *names))).encode()).hexdigest()[:16]
    shown = Scene(meme, Fence(mark)).comparison(prompt, rounds, guideline, (first, second), settings=settings)
    text = "\n\n".join(part for part in shown if isinstance(part, str))
    spelt = {verdict: word for word, verdict in words_of(settings.levels).items()}
    verdicts = {name: _MIRRORED.get(v, v) if mirrored else v for name, v in event.verdicts.items()}
    reply = {"why": why or "–", **{name: spelt[verdicts[name]] for name in settings.dimensions}}
    longer = _words(first) - _words(second)
    return JudgeExample(
        meme=event.meme,
        task=event.task,
        a=names[0],
        b=names[1],
        teacher=event.judge,
        mirrored=mirrored,
        longer="A" if longer > 0 else "B" if longer < 0 else "neither",
        keys=settings.dimensions,
        levels=settings.levels,
        images=tuple(map(_name_of, meme.frames)),
        prompt=({"role": "system", "content": prompt.system()}, {"role": "user", "content": text}),
        # Not escaped, or the student would learn to write escapes instead of letters.
        completion=({"role": "assistant", "content": json.dumps(reply, ensure_ascii=False)},),
    )


def _name_of(frame: Frame) -> str:
    # Named by content, so that a picture shown in many comparisons is stored once.
    return f"{hashlib.sha256(frame.png).hexdigest()}.png"


def _words(answer: FixedQuestion) -> int:
    return sum(len(text.split()) for text in (answer.background, *answer.rounds))


def mirrored_reasons(why: str) -> str | None:
    """Swaps the names of the two answers in reasons; None if an A may be the article of a sentence."""
    if re.search(r"(?:^|[.!?:;\"“]\s*)A\b(?! ?[,>=<])", why):
        return None
    return re.sub(r"\b[AB]\b", lambda match: "B" if match[0] == "A" else "A", why)
