"""The commands in the documentation's console blocks, and the reasons why some are not run by tests."""

import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT

TESTED_WHOLE = {
    "README.md": "tests/integration/test_readme.py",
    "docs/tutorial.md": "tests/integration/test_docs_blocks.py",
    "docs/researcher/first-figure.md": "tests/integration/test_first_figure.py",
}
"""Pages that a dedicated test runs from top to bottom."""

NOT_RUN = tuple(
    tuple(line.split("\t")) for line in (ROOT / "tests/fixtures/commands_not_run.tsv").read_text().splitlines()
)
"""Patterns of commands that are not run, with the reason or the test that covers them; the first match counts."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a console block.

    Attributes:
        page: Path of its page, relative to the repository's root.
        line: The command, including its continuation lines.
    """

    page: str
    line: str

    @property
    def why_not(self) -> str:
        """Reason why no test runs it verbatim; empty if one does."""
        return next((why for pattern, why in NOT_RUN if re.search(pattern, self.line)), "")


def pages() -> list[Path]:
    """Returns all hand-written pages with console blocks."""
    ours = (page for page in (ROOT / "docs").rglob("*.md") if "node_modules" not in page.parts)
    return [ROOT / "README.md", *sorted(ours)]


def blocks(page: Path, language: str = "console") -> list[str]:
    """Returns the code blocks of a page in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> Iterator[Command]:
    """Yields the commands of a page; a line that ends in a backslash or a pipe continues in the next."""
    name = page.relative_to(ROOT).as_posix()
    for block in blocks(page):
        line = ""
        for raw_line in block.splitlines():
            if raw_line.startswith("$ "):
                line = raw_line.removeprefix("$ ")
            elif line:
                line += f"\n{raw_line}"
            if line and not line.rstrip().endswith(("\\", "|")):
                yield Command(name, re.sub(r"\s+#\s.*$", "", line))
                line = ""


class Shell:
    """A user's shell in a folder: bash runs the commands, with this environment's programs first on the path."""

    def __init__(self, folder: Path, home: Path, **environment: str) -> None:
        self.folder = folder
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**os.environ, "MEMECOURT_HOME": str(home), "PATH": path, **environment}

    def run(self, line: str, *, allowed_codes: Collection[int] = (0,)) -> str:
        """Returns the output of a command, with "y" as its input; fails unless the exit code is allowed."""
        result = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line],
            cwd=self.folder,
            env=self.environment,
            input="y\n",
            capture_output=True,
            text=True,
        )
        assert result.returncode in allowed_codes, f"{line}\n{result.stdout[-3000:]}{result.stderr[-3000:]}"
        return result.stdout
