"""The sets of texts that measure the detector of prompt injections, by name.

``python -m tests.support.steering_sets FOLDER`` writes each as a JSON array, for ``memecourt-eval steering``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support.held_out import HELD_OUT, SEEN, STEERING
from tests.support.injections import INJECTIONS, marked

SETS: dict[str, list[str]] = {
    "steering-seen": [marked(text, "7c1e0a9b3d5f2468") for _, text in INJECTIONS],
    "steering-held-out": [text for texts in STEERING.values() for text in texts],
    "lookalikes-seen": [text for texts in SEEN.values() for text in texts],
    "lookalikes-held-out": [text for texts in HELD_OUT.values() for text in texts],
}


def main(folder: Path) -> None:
    """Writes each set to a file in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, texts in SETS.items():
        (folder / f"{name}.json").write_text(json.dumps(texts), encoding="utf-8")
    print(f"{len(SETS)} files in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
