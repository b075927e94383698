"""Makes a synthetic benchmark in the layout of HarMeme or of FHM, with planted faults if requested.

Memes come in families of four on one scene: a harmful one; its text next to another badge, which is not harmful; the
text changed to name that other badge, which is harmful again; and kind words next to the first badge. Two of four are
harmful. A family never spans two splits, so that only planted leaks exist.
"""

import io
import json
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

from PIL import ImageEnhance

from court.errors import BadRequest
from eval.datasets.card import SplitRole
from eval.datasets.items import LEVELS, Level
from eval.datasets.known import SYNTHETIC_KEY, find_card
from eval.synthetic.scenes import refuse_full
from eval.synthetic.world import (
    BAD,
    GROUPS,
    KIND,
    OPENERS,
    SCENES,
    SIZE,
    TIMES,
    caption_of,
    draw,
    level_of,
    png_of,
    signs_of,
    target_of,
    text_of,
)

TASKS, CARD = "tasks", "card.toml"
"""Folder of the labels of further tasks (:mod:`eval.synthetic.world`), and the card that describes them."""
KEY = "key.jsonl"
"""What each meme shows and says, a line a meme: what only the maker of a benchmark knows."""
_MOST = 12_000  # memes; beyond that, texts would begin to repeat


class Layout(StrEnum):
    """Layout of the files, after a published data set."""

    HARMEME = "harmeme"
    FHM = "fhm"


class Plant(StrEnum):
    """Faults that are planted on purpose."""

    LEAKAGE = "leakage"
    """Memes in train that are too near to one in test: same id, same file, same picture, same text, near-duplicate."""
    DEFECTS = "defects"
    """Rows that can't be used: damaged and missing pictures, an empty and a foreign label, an id that stands twice, a
    line that is no JSON."""


@dataclass(frozen=True, slots=True)
class SyntheticMeme:
    """A meme and its known properties; one line of ``key.jsonl``."""

    id: str
    split: str
    image: str
    text: str
    badge: str
    level: Level
    """Gold, by the hidden rule."""
    family: int
    scene: str
    seed: int
    planted: str = ""
    """Kind of fault that it was planted for; empty for the others."""
    of: str = ""
    """Id of the test meme that it nearly duplicates, for leakage."""

    @property
    def harmful(self) -> bool:
        """Two-class gold."""
        return self.level is not Level.NOT_HARMFUL


@dataclass(frozen=True, slots=True)
class Made:
    """A synthetic benchmark on disk."""

    root: Path
    dataset: str
    """Id in :mod:`eval.datasets.known`."""
    memes: tuple[SyntheticMeme, ...]
    """All memes, planted ones last in their splits."""


def make(
    root: Path,
    layout: Layout,
    *,
    train: int,
    val: int,
    test: int,
    seed: int = 0,
    plant: Sequence[Plant] = (),
    near: bool = False,
    size: tuple[int, int] = SIZE,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Made:
    """Writes a benchmark: the same files for the same arguments.

    Args:
        near: True if each family of test has two in train with its scene and groups; ``train`` is then twice ``test``.

    Raises:
        BadRequest: The directory is not empty, or more memes are requested than can be made.
        OSError: The disk cannot be written.
    """
    refuse_full(root)
    wanted = (train, val, test)
    if min(wanted) < 0 or not sum(wanted) or sum(wanted) > _MOST:
        raise BadRequest(f"Between 1 and {_MOST:,} memes can be made in all, not {train}, {val} and {test}.")
    if Plant.LEAKAGE in plant and test < 5:
        raise BadRequest("Leakage needs at least 5 memes in test to be near to.")
    dataset = find_card(f"synthetic-{layout}")
    # Includes the layout, so that the two benchmarks of one seed do not contain the same memes.
    rng = random.Random(f"{layout} {seed}")
    subjects: list[tuple[str, str, str]] = []
    if near:
        pairs = (rng.sample(list(GROUPS), 2) for _ in range(-(-test // 4)))
        tested = [(here, there, rng.choice(SCENES)) for here, there in pairs]
        # In either order: of a family's four memes, three are about the first group.
        subjects = [one for here, there, scene in tested for one in ((here, there, scene), (there, here, scene))]
        subjects += tested
    families = _families(rng, subjects)
    memes: list[SyntheticMeme] = []
    for role, count in zip((SplitRole.TRAIN, SplitRole.VALIDATION, SplitRole.TEST), wanted, strict=True):
        (split,) = dataset.of_role(role)
        # Each split begins with a new family: the rest of the last family is discarded, not carried over.
        drawn = [replace(next(families), split=split.name) for _ in range(-(-count // 4) * 4)][:count]
        rng.shuffle(drawn)
        memes += drawn
    # Numbered after the shuffle and across all splits, so that an id reveals nothing about a label.
    memes = [_named(meme, layout, number) for number, meme in enumerate(memes, 1)]
    planting = _Planting(
        dataset.of_role(SplitRole.TRAIN)[0].name, dataset.of_role(SplitRole.TEST)[0].name, layout, memes
    )
    files: dict[str, bytes] = {}
    if Plant.LEAKAGE in plant:
        planting.leak(next(families), files)
    if Plant.DEFECTS in plant:
        planting.spoil([next(families) for _ in range(4)], files)
    _write(
        root, layout, memes=tuple(planting.memes), files=files, missing=planting.missing, size=size, progress=progress
    )
    about = {
        "made_by": "memecourt-eval synthetic",
        "dataset": dataset.id,
        "seed": seed,
        "asked": dict(zip(("train", "val", "test"), wanted, strict=True)),
        "planted": [
            {"kind": meme.planted, "split": meme.split, "id": meme.id, "of": meme.of}
            for meme in planting.memes
            if meme.planted
        ],
    }
    # Written last, because the directory is recognised by this file.
    (root / SYNTHETIC_KEY).write_text(json.dumps(about, indent=2) + "\n", "utf-8")
    return Made(root, dataset.id, tuple(planting.memes))


def read_key(root: Path) -> tuple[SyntheticMeme, ...]:
    """Reads the key of the memes in a directory. Raises OSError if there is none."""
    lines = (root / KEY).read_text("utf-8").splitlines()
    return tuple(SyntheticMeme(**{**record, "level": Level(record["level"])}) for record in map(json.loads, lines))


def _families(rng: random.Random, subjects: Sequence[tuple[str, str, str]]) -> Iterator[SyntheticMeme]:
    """Yields memes, the four of a family one after the other; no text occurs in two families.

    The first families have these groups and scenes.
    """
    known = deque(subjects)
    taken: set[tuple[str, str, str]] = set()
    number = 0
    while True:
        here, there = known[0][:2] if known else rng.sample(list(GROUPS), 2)
        bad, kind = rng.choice(BAD), rng.choice(KIND)
        opener, time = rng.choice(OPENERS), rng.choice(TIMES)
        # Either text would then belong to two families.
        if {(opener, bad, time), (opener, kind, time)} & taken:
            continue
        taken |= {(opener, bad, time), (opener, kind, time)}
        number += 1
        scene = known.popleft()[2] if known else rng.choice(SCENES)
        seed = rng.randrange(1_000_000)
        # Bad words next to their own group's badge and next to another, kind words next to the former: neither words
        # nor badge decide alone.
        for group, saying, badge in ((here, bad, here), (here, bad, there), (there, bad, there), (here, kind, here)):
            text = text_of(opener, group, saying, time)
            yield SyntheticMeme(
                id="",
                split="",
                image="",
                text=text,
                badge=badge,
                level=level_of(text, badge),
                family=number,
                scene=scene,
                seed=seed,
            )


def _named(meme: SyntheticMeme, layout: Layout, number: int) -> SyntheticMeme:
    if layout is Layout.HARMEME:
        return replace(meme, id=f"synthetic_memes_{number}", image=f"synthetic_memes_{number}.png")
    return replace(meme, id=f"{number}", image=f"img/{number:05d}.png")


class _Planting:
    """Plants faults. Planted memes are extra: the splits have as many sound memes as were requested."""

    def __init__(self, train: str, test: str, layout: Layout, memes: list[SyntheticMeme]) -> None:
        self.memes = memes
        self.missing: set[str] = set()
        self._train, self._test, self._layout = train, test, layout

    def leak(self, other: SyntheticMeme, files: dict[str, bytes]) -> None:
        """Adds a meme to train for each way of being too near to one in test."""
        same_id, same_file, same_picture, same_text, near_duplicate = [m for m in self.memes if m.split == self._test][
            :5
        ]
        self._add(replace(other, id=same_id.id), "same id", of=same_id)
        added = self._add(replace(same_file, text=other.text), "same file", of=same_file)
        files[added.image] = _png(same_file)
        added = self._add(replace(same_picture, text=other.text), "same picture", of=same_picture)
        # Other bytes for the same pixels: a comparison of files must miss it, one of pixels must find it.
        files[added.image] = png_of(_image(same_picture), level=1)
        self._add(replace(same_text, badge=other.badge, scene=other.scene, seed=other.seed), "same text", of=same_text)
        added = self._add(
            replace(near_duplicate, text=near_duplicate.text + "!"), "near-duplicate", of=near_duplicate, ending=".jpg"
        )
        # Neither bytes nor pixels are the same: only its similarity reveals it.
        paler = io.BytesIO()
        ImageEnhance.Brightness(_image(near_duplicate)).enhance(0.95).save(paler, "JPEG", quality=80)
        files[added.image] = paler.getvalue()

    def spoil(self, others: Sequence[SyntheticMeme], files: dict[str, bytes]) -> None:
        """Adds unusable rows to train, and a damaged picture to test as well."""
        first, second, third, fourth = others
        for meme, split in ((first, self._train), (second, self._test)):
            added = self._add(meme, "damaged picture", split=split)
            files[added.image] = _png(meme)[:60]  # cut before the first pixel: a partial picture would still be judged
        self.missing.add(self._add(third, "missing picture").image)
        self._add(fourth, "empty label")
        self._add(fourth, "foreign label")
        twice = next((m for m in self.memes if m.split == self._train and not m.planted), None)
        if twice is not None:
            self._add(replace(fourth, id=twice.id), "duplicate id")
        self._add(fourth, "no JSON")

    def _add(
        self, meme: SyntheticMeme, planted: str, *, of: SyntheticMeme | None = None, split: str = "", ending: str = ""
    ) -> SyntheticMeme:
        named = _named(meme, self._layout, len(self.memes) + 1)
        if planted in ("same id", "duplicate id"):
            named = replace(named, id=meme.id)
        added = replace(
            named,
            split=split or self._train,
            image=named.image.replace(".png", ending) if ending else named.image,
            level=level_of(meme.text, meme.badge),
            planted=planted,
            of=of.id if of else "",
        )
        self.memes.append(added)
        return added


def _image(meme: SyntheticMeme, size: tuple[int, int] = SIZE) -> Any:
    return draw(meme.scene, meme.seed, meme.badge, meme.text, size=size)


def _png(meme: SyntheticMeme, size: tuple[int, int] = SIZE) -> bytes:
    return png_of(_image(meme, size))


def _write(
    root: Path,
    layout: Layout,
    memes: tuple[SyntheticMeme, ...],
    files: Mapping[str, bytes],
    missing: set[str],
    size: tuple[int, int],
    progress: Callable[[int, int], None],
) -> None:
    pictures = root / "images" if layout is Layout.HARMEME else root
    (pictures if layout is Layout.HARMEME else root / "img").mkdir(parents=True, exist_ok=True)
    for number, meme in enumerate(memes, 1):
        if meme.image not in missing:
            (pictures / meme.image).write_bytes(files.get(meme.image) or _png(meme, size))
        progress(number, len(memes))
    for split in find_card(f"synthetic-{layout}").splits:
        lines = [_line(layout, meme) for meme in memes if meme.split == split.name]
        (root / split.files[0]).write_text("".join(lines), "utf-8")
    _write_tasks(root, layout, memes)
    with (root / KEY).open("w", encoding="utf-8") as key:
        for meme in memes:
            key.write(json.dumps(asdict(meme)) + "\n")


def _write_tasks(root: Path, layout: Layout, memes: Sequence[SyntheticMeme]) -> None:
    """Writes the labels of the world's other tasks, without defects, and the card that describes them."""
    (root / TASKS).mkdir()
    for role in SplitRole:
        splits = {split.name for split in find_card(f"synthetic-{layout}").of_role(role)}
        # Defects are faults of rows and files; a leaking meme is sound.
        sound = [meme for meme in memes if meme.split in splits and (not meme.planted or meme.of)]
        lines = [json.dumps(_task_row(meme)) + "\n" for meme in sound]
        (root / TASKS / f"{role}.jsonl").write_text("".join(lines), "utf-8")
    (root / CARD).write_text((resources("eval.synthetic") / "tasks_card.toml").read_text("utf-8"), "utf-8")


def _task_row(meme: SyntheticMeme) -> dict[str, Any]:
    return {
        "id": meme.id,
        "image": meme.image,
        "text": meme.text,
        "caption": caption_of(meme.badge),
        "family": str(meme.family),
        "harm": "harmful" if meme.harmful else "not harmful",
        "target": target_of(meme.text, meme.badge),
        "signs": list(signs_of(meme.text, meme.badge)),
    }


def _line(layout: Layout, meme: SyntheticMeme) -> str:
    if meme.planted == "no JSON":
        return '{"id": "cut off\n'
    record: dict[str, Any]
    if layout is Layout.HARMEME:
        label = {"empty label": "", "foreign label": "hardly harmful"}.get(meme.planted, tuple(LEVELS)[meme.level])
        labels = [label, "community"] if meme.harmful else [label]
        record = {"id": meme.id, "image": meme.image, "labels": labels, "text": meme.text}
    else:
        word = {"empty label": None, "foreign label": 2}.get(meme.planted, int(meme.harmful))
        record = {"id": int(meme.id), "img": meme.image, "label": word, "text": meme.text}
    return json.dumps(record) + "\n"
