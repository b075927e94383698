"""Builds the documentation as a site, strictly and without network: ``make docs`` writes it to ``site/``.

The pages in docs/ are written to be read where they lie, too; here they get a home page (the README), reference pages
made of the code, and an order (``zensical.toml``). A link that leads nowhere ends the build.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "build" / "docs"
"""Folder that the site is built from; ``zensical.toml`` names it too."""
_AT_ROOT = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
_TO_CODE = re.compile(r"\[([^\]]+)\]\((?:\.\./)*[\w./-]*(?:\.(?:py|proto|toml|cff)|LICENSE|Makefile|/)\)")
"""Links to files that are no pages: in the site their words stand alone."""


def gather(folder: Path) -> None:
    """Puts all pages of the site into a folder, which is emptied before."""
    sys.path.insert(0, str(ROOT))
    from scripts.reference_docs import pages

    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder, ignore=shutil.ignore_patterns("node_modules", "gen"))
    for name in _AT_ROOT:
        text = (ROOT / name).read_text("utf-8").replace("](docs/", "](").replace("](README.md", "](index.md")
        (folder / ("index.md" if name == "README.md" else name)).write_text(text, "utf-8")
    for page in folder.rglob("*.md"):
        text = page.read_text("utf-8").replace("](../README.md", "](index.md")
        for name in _AT_ROOT[1:]:
            text = text.replace(f"](../{name}", f"]({name}")
        page.write_text(_TO_CODE.sub(r"\1", text), "utf-8")
    (folder / "reference").mkdir()
    for name, text in pages().items():
        (folder / "reference" / name).write_text(text, "utf-8")


def main() -> None:
    """Gathers the pages and builds the site. Exits with an error where a link leads nowhere."""
    gather(SOURCES)
    # Not with --clean: that empties .cache, where others keep things too.
    build = [str(Path(sys.executable).with_name("zensical")), "build", "--strict"]
    sys.exit(subprocess.run(build, cwd=ROOT, check=False).returncode)


if __name__ == "__main__":
    main()
