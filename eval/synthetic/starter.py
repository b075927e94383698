"""The memes of the starter library as a data set, with 200 others like them to judge."""

import json
import tomllib
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from pathlib import Path

from PIL import Image

from eval.synthetic.scenes import SCENES, draw_meme
from eval.synthetic.world import refuse_full, write_memes
from retrieval.build import STARTER_MEMES


def memes_to_judge() -> list[dict[str, str]]:
    """Returns the memes to judge, harmful and not in turn, so that scenes go to both labels alike."""
    texts = tomllib.loads(files("eval.synthetic").joinpath("starter_test.toml").read_text("utf-8"))
    pairs = zip(texts["harmful"], texts["not_harmful"], strict=True)
    memes: list[dict[str, str]] = []
    for index, pair in enumerate(pairs):
        for label, text in zip(("HARMFUL", "NOT_HARMFUL"), pair, strict=True):
            id_ = f"test-{len(memes) + 1:03d}"
            scene = SCENES[index % len(SCENES)]
            memes.append({"id": id_, "label": label, "text": text, "scene": scene, "image": f"{id_}.png"})
    return memes


def write_starter_data(root: Path, progress: Callable[[int, int], None] = lambda *_: None) -> int:
    """Writes ``train.jsonl``, ``test.jsonl`` and ``images`` into a directory that is new or empty.

    Raises:
        BadRequest: The directory is not empty.
        OSError: The disk cannot be written.
    """
    refuse_full(root)
    tests, shipped = memes_to_judge(), sorted(STARTER_MEMES.with_name("pictures").iterdir())
    pictures: dict[str, bytes | Callable[[], Image.Image]] = {f"images/{one.name}": one.read_bytes() for one in shipped}
    for number, meme in enumerate(tests, 1):
        pictures[f"images/{meme['image']}"] = partial(draw_meme, meme["scene"], meme["text"], seed=number)
    rows = {"train.jsonl": STARTER_MEMES.read_text("utf-8").splitlines(), "test.jsonl": map(json.dumps, tests)}
    write_memes(root, pictures, rows, progress)
    return len(pictures)
