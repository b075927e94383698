"""Downloads the picture corpus of ``test_picture_corpus.py``: the test images in Pillow's source package.

They are hundreds of odd, old, broken and once dangerous files of every format. The package is fetched by pip from
whatever index it is set up with, its SHA-256 is pinned here, and only ``Tests/images`` is unpacked.

Run: ``python scripts/fetch_corpus.py``. It does nothing where the corpus is there already.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path, PurePosixPath

VERSION = "13.0.0"
SHA256 = "cdcd1ba258178f7356d74170c9a81ba4eab6a5d55748bc402a5a2a6fe6be3510"
FOLDER = Path(__file__).parent.parent / ".cache" / "corpus"
IMAGES = FOLDER / f"pillow-{VERSION}"
MOST_BYTES = 200 * 1024 * 1024
"""Of all files unpacked together."""


def main() -> None:
    """Fetches, verifies and unpacks. Leaves nothing half done behind."""
    if IMAGES.is_dir():
        print(f"{IMAGES} is there already")
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as work:
        package = download(Path(work))
        unpacked = Path(work) / "unpacked"
        count = unpack(package, unpacked)
        # Within one file system, as a whole: the folder is there complete or not at all.
        shutil.move(unpacked, IMAGES)
    print(f"{count} files in {IMAGES}")


def download(work: Path) -> Path:
    """The source package, verified. Raises SystemExit if it is another than the pinned one.

    pip asks the package's own build code for its name before it is satisfied; the pinned hash in the requirements file
    makes sure that it is the code we know before any of it runs.
    """
    requirements = work / "requirements.txt"
    requirements.write_text(f"pillow=={VERSION} --hash=sha256:{SHA256}\n")
    options = ["--require-hashes", "--no-deps", "--no-binary", ":all:", "--dest", str(work)]
    subprocess.run([sys.executable, "-m", "pip", "download", *options, "-r", str(requirements)], check=True)
    (package,) = work.glob("*.tar.gz")
    if hashlib.sha256(package.read_bytes()).hexdigest() != SHA256:
        raise SystemExit("the package that pip fetched is not the pinned one")
    return package


def unpack(package: Path, target: Path) -> int:
    """Writes the files of ``Tests/images`` below ``target``, nothing else and no link; returns their number."""
    count = size = 0
    with tarfile.open(package) as archive:
        for member in archive:
            parts = PurePosixPath(member.name).parts
            if parts[1:3] != ("Tests", "images") or ".." in parts or not member.isreg():
                continue
            # No more than this size is read of a file, so the sum is known before the file is written.
            size += member.size
            if size > MOST_BYTES:
                raise SystemExit("the package holds more than it should")
            content = archive.extractfile(member)
            assert content is not None
            place = target.joinpath(*parts[3:])
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content.read())
            count += 1
    return count


if __name__ == "__main__":
    main()
