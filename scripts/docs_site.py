"""Builds the documentation as a site, strictly and without network: ``make docs`` writes it to ``site/``.

The pages in docs/ are written to be read where they lie, too; here they get a home page (the README), reference pages
made of the code, and an order (``zensical.toml``). A link that leads nowhere ends the build.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "build" / "docs"
"""Folder that the site is built from; ``zensical.toml`` names it too."""
_AT_ROOT = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
_TO_CODE = re.compile(r"\[([^\]]+)\]\(((?:\.\./)*[\w./-]*(?:\.(?:py|mjs|go|proto|toml|cff)|LICENSE|Makefile|/))\)")
"""Links to files that are no pages: in the site they lead to pages that show them (:func:`_shown`)."""
_LEXERS = {".py": "python", ".mjs": "javascript", ".go": "go", ".proto": "protobuf", ".toml": "toml", ".cff": "yaml"}


def gather(folder: Path) -> None:
    """Puts all pages of the site into a folder, which is emptied before."""
    # As a script it has scripts/ on its path, and not the root, below which the import finds `scripts`.
    sys.path.insert(0, str(ROOT))
    from scripts.reference_docs import pages

    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder, ignore=shutil.ignore_patterns("node_modules", "gen"))
    for name in _AT_ROOT:
        text = (ROOT / name).read_text("utf-8").replace("](docs/", "](").replace("](README.md", "](index.md")
        (folder / ("index.md" if name == "README.md" else name)).write_text(text, "utf-8")
    (folder / "reference").mkdir()
    for name, text in pages().items():
        (folder / "reference" / name).write_text(text, "utf-8")
    # Listed before the first page of code is written: in those, nothing is a link.
    for page in sorted(folder.rglob("*.md")):
        text = page.read_text("utf-8").replace("](../README.md", "](index.md")
        for name in _AT_ROOT[1:]:
            text = text.replace(f"](../{name}", f"]({name}")
        page.write_text(_TO_CODE.sub(partial(_shown, folder, page), text), "utf-8")


def _shown(folder: Path, page: Path, link: re.Match[str]) -> str:
    """A link to a file of the repository as one to a page of the site that shows it; of a folder, its words alone."""
    words, target = link.groups()
    at_root = page.parent == folder and page.name in ("index.md", *_AT_ROOT)
    origin = ROOT if at_root else ROOT / "docs" / page.parent.relative_to(folder)
    path = (origin / target).resolve()
    # A link must not publish a file from beyond the repository.
    if not path.is_file() or not path.is_relative_to(ROOT):
        return words
    name = path.relative_to(ROOT).as_posix()
    into = folder / "source" / f"{name}.md"
    into.parent.mkdir(parents=True, exist_ok=True)
    code = path.read_text("utf-8")
    # Longer than any fence that stands in it; and not searched for, among pages that are written for readers.
    fence = "`" * max(4, 1 + max(map(len, re.findall("`+", code)), default=0))
    head = f"---\nsearch:\n  exclude: true\n---\n# {path.name}\n\n`{name}`\n\n"
    into.write_text(f"{head}{fence}{_LEXERS.get(path.suffix, 'text')}\n{code}\n{fence}\n", "utf-8")
    return f"[{words}]({os.path.relpath(into, page.parent)})"


def main() -> None:
    """Gathers the pages and builds the site. Exits with an error where a link leads nowhere."""
    gather(SOURCES)
    # Not with --clean: that empties .cache, where others keep things too.
    build = [str(Path(sys.executable).with_name("zensical")), "build", "--strict"]
    sys.exit(subprocess.run(build, cwd=ROOT, check=False).returncode)


if __name__ == "__main__":
    main()
