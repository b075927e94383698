"""Makes a synthetic benchmark in the layout of HarMeme or of FHM, with planted faults if requested.

Memes come in families of four on one scene: a harmful one; its text next to another badge, which is not harmful; the
text changed to name that other badge, which is harmful again; and kind words next to the first badge. Two of four are
harmful. A family never spans two splits, so that only planted leaks exist.
"""

import io
import json
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import partial
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

from PIL import ImageEnhance

from court.errors import BadRequest
from eval.datasets.card import SplitRole
from eval.datasets.items import LEVELS, Level
from eval.datasets.known import SYNTHETIC_KEY, find_card
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
    refuse_full,
    signs_of,
    target_of,
    text_of,
    write_memes,
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
    splits = [dataset.of_role(role)[0].name for role in (SplitRole.TRAIN, SplitRole.VALIDATION, SplitRole.TEST)]
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
    for split, count in zip(splits, wanted, strict=True):
        # Each split begins with a new family: the rest of the last family is discarded, not carried over.
        drawn = [replace(next(families), split=split) for _ in range(-(-count // 4) * 4)][:count]
        rng.shuffle(drawn)
        memes += drawn
    # Numbered after the shuffle and across all splits, so that an id reveals nothing about a label.
    memes = [_named(meme, layout, number) for number, meme in enumerate(memes, 1)]
    # Planted memes are extra: the splits have as many sound memes as were requested.
    planted: list[_Planted] = []
    if Plant.LEAKAGE in plant:
        planted += _leaks([meme for meme in memes if meme.split == splits[2]], next(families))
    if Plant.DEFECTS in plant:
        twice = next((meme.id for meme in memes if meme.split == splits[0]), None)
        planted += _defects([next(families) for _ in range(4)], twice, test_split=splits[2])
    contents: dict[str, bytes] = {}
    for meme, content in planted:
        named = _named(meme, layout, len(memes) + 1)
        memes.append(
            replace(named, id=meme.id or named.id, split=meme.split or splits[0], level=level_of(meme.text, meme.badge))
        )
        if content is not None:
            contents[named.image] = content
    folder = "images/" if layout is Layout.HARMEME else ""
    pictures = {f"{folder}{meme.image}": contents.get(meme.image, partial(_image, meme, size)) for meme in memes}
    shown = {name: picture for name, picture in pictures.items() if picture != b""}
    write_memes(root, shown, _rows(layout, memes), progress)
    about = {
        "made_by": "memecourt-eval synthetic",
        "dataset": dataset.id,
        "seed": seed,
        "asked": dict(zip(("train", "val", "test"), wanted, strict=True)),
        "planted": [
            {"kind": meme.planted, "split": meme.split, "id": meme.id, "of": meme.of} for meme in memes if meme.planted
        ],
    }
    # Written last, because the directory is recognised by this file.
    (root / SYNTHETIC_KEY).write_text(json.dumps(about, indent=2) + "\n", "utf-8")
    return Made(root, dataset.id, tuple(memes))


def read_key(root: Path) -> tuple[SyntheticMeme, ...]:
    """Reads the key of the memes in a directory. Raises OSError if there is none."""
    lines = (root / KEY).read_text("utf-8").splitlines()
    return tuple(SyntheticMeme(**{**record, "level": Level(record["level"])}) for record in map(json.loads, lines))


def _families(rng: random.Random, subjects: Sequence[tuple[str, str, str]]) -> Iterator[SyntheticMeme]:
    """Yields memes family by family, the first ones with these groups and scenes; no two families share a text."""
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
    ending = "jpg" if meme.planted == "near-duplicate" else "png"
    if layout is Layout.HARMEME:
        return replace(meme, id=f"synthetic_memes_{number}", image=f"synthetic_memes_{number}.{ending}")
    return replace(meme, id=f"{number}", image=f"img/{number:05d}.{ending}")


_Planted = tuple[SyntheticMeme, bytes | None]
"""A meme to plant, and its file: None to draw it, empty for none. It is in train, under a new id, unless it says so."""


def _leaks(tested: Sequence[SyntheticMeme], other: SyntheticMeme) -> list[_Planted]:
    """Returns a meme for each way of being too near to one in test."""

    def leaked(kind: str, of: SyntheticMeme, content: bytes | None = None, **changes: Any) -> _Planted:
        return replace(of, **{"id": "", "split": "", "planted": kind, "of": of.id, **changes}), content

    same_id, same_file, same_picture, same_text, near_duplicate = tested[:5]
    # Neither bytes nor pixels are the same: only its similarity reveals it.
    paler = io.BytesIO()
    ImageEnhance.Brightness(_image(near_duplicate)).enhance(0.95).save(paler, "JPEG", quality=80)
    return [
        (replace(other, id=same_id.id, planted="same id", of=same_id.id), None),
        leaked("same file", same_file, png_of(_image(same_file)), text=other.text),
        # Other bytes for the same pixels: a comparison of files must miss it, one of pixels must find it.
        leaked("same picture", same_picture, png_of(_image(same_picture), level=1), text=other.text),
        leaked("same text", same_text, badge=other.badge, scene=other.scene, seed=other.seed),
        leaked("near-duplicate", near_duplicate, paler.getvalue(), text=near_duplicate.text + "!"),
    ]


def _defects(others: Sequence[SyntheticMeme], twice: str | None, *, test_split: str) -> list[_Planted]:
    """Returns unusable rows of train, one with the id of another, and a damaged picture of test as well."""
    first, second, third, fourth = others
    # Cut before the first pixel: a partial picture would still be judged.
    found: list[_Planted] = [
        (replace(first, planted="damaged picture"), png_of(_image(first))[:60]),
        (replace(second, planted="damaged picture", split=test_split), png_of(_image(second))[:60]),
        (replace(third, planted="missing picture"), b""),
        *((replace(fourth, planted=f"{kind} label"), None) for kind in ("empty", "foreign")),
    ]
    if twice is not None:
        found.append((replace(fourth, planted="duplicate id", id=twice), None))
    return [*found, (replace(fourth, planted="no JSON"), None)]


def _image(meme: SyntheticMeme, size: tuple[int, int] = SIZE) -> Any:
    return draw(meme.scene, meme.seed, meme.badge, meme.text, size=size)


def _rows(layout: Layout, memes: Sequence[SyntheticMeme]) -> dict[str, list[str]]:
    """Returns the lines of the splits, of the labels of the world's other tasks, of their card and of the key."""
    rows, dataset = {}, find_card(f"synthetic-{layout}")
    for split in dataset.splits:
        rows[split.files[0]] = [_line(layout, meme) for meme in memes if meme.split == split.name]
    for role in SplitRole:
        splits = {split.name for split in dataset.of_role(role)}
        # Defects are faults of rows and files; a leaking meme is sound.
        sound = [meme for meme in memes if meme.split in splits and (not meme.planted or meme.of)]
        rows[f"{TASKS}/{role}.jsonl"] = [json.dumps(_task_row(meme)) for meme in sound]
    rows[CARD] = (resources("eval.synthetic") / "tasks_card.toml").read_text("utf-8").splitlines()
    return {**rows, KEY: [json.dumps(asdict(meme)) for meme in memes]}


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
        return '{"id": "cut off'
    record: dict[str, Any]
    if layout is Layout.HARMEME:
        label = {"empty label": "", "foreign label": "hardly harmful"}.get(meme.planted, tuple(LEVELS)[meme.level])
        labels = [label, "community"] if meme.harmful else [label]
        record = {"id": meme.id, "image": meme.image, "labels": labels, "text": meme.text}
    else:
        word = {"empty label": None, "foreign label": 2}.get(meme.planted, int(meme.harmful))
        record = {"id": int(meme.id), "img": meme.image, "label": word, "text": meme.text}
    return json.dumps(record)
