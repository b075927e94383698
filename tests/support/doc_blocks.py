"""The commands in the documentation's console blocks, and the reasons why some are not run by tests."""

from __future__ import annotations

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

NOT_RUN: tuple[tuple[str, str], ...] = (
    (
        r"\bpip install\b|\bnpm (ci|install)\b",
        "installs packages; tests/unit/test_dependencies.py and make clients see to these",
    ),
    (r"\bMEMECOURT_FULL=1\b", "tests at their full size take hours: make test-full"),
    (r"memecourt-eval functional|synthetic-functional", "216 trials: test_functional.py holds 18"),
    (r"memecourt-eval perf\b", "benchmarks take minutes; small ones are run by tests/unit/test_perf*.py"),
    (r"--vllm\b|memecourt vllm\b", "needs vLLM and a GPU: tests/live (make test-vllm)"),
    (r"\bdocker\b|:16686|:6006|scripts/phoenix", "needs Docker or Phoenix; tests/live sends traces to a real Phoenix"),
    (r"\bgrpcurl\b|\bbuf (curl|generate)\b|\bnode judge|base64", "run by tests/integration/test_other_clients.py"),
    (r"postgresql://|\bpsql\b", "needs a database: tests/contract/test_postgres_cli.py, test_replicas.py"),
    (r"[Hh]arm-[cCpP]|HarMeme", "needs annotations that are their authors' to give: tests marked corpus"),
    (r"--dataset climatememes", "needs files that are their authors' to give: tests/unit/eval/runs/test_classify.py"),
    (
        r"\bpolicy (check|import|test|diff|suggest)\b",
        "needs a policy of one's own: tests/integration/test_policy_as_code.py",
    ),
    (r"memecourt-eval audition\b", "needs a model server: tests/integration/test_audition.py"),
    (r"--llm-url|eval\.standin\.server|--arms list", "needs a model server: tests/integration/test_benchmark_chain.py"),
    (r"--dataset exams/", "needs an exam of a probe: tests/unit/eval/probe/test_probe_exam.py holds a run on one"),
    (r"-m eval\.arena\.train_judge\b", "trains on a GPU: test_arena_distil.py trains a tiny model"),
    (r"memecourt-eval witness --claims\b", "needs a model server: tests/unit/eval/witness/test_witness_eval.py"),
    (r"memecourt-eval (arena|probe)\b", "needs model servers: tests/unit/eval/arena/test_arena.py, test_probe_run.py"),
    (
        r"memecourt (--config )?(\S+ )?(serve|console)\b",
        "serves until it is ended: tests/integration/test_server.py, test_console.py",
    ),
    (r"memecourt-(ozone|hma)\b|OZONE_PDS", "run by tests/contract/test_other_tools.py"),
    (r"memecourt-queue\b", "reads a queue until it is ended: tests/integration/test_queue_command.py"),
    (r"curl --fail-with-body", "asks what serves, and is run as it stands: tests/integration/test_http.py"),
    (r"\bsglang\b|\bllama-server\b", "needs those servers and a GPU; test_other_servers.py asks stand-ins"),
    (r"memecourt prompts\b|--prompts ours", "run by tests/unit/court/test_prompt_sets.py"),
    (r"memecourt-eval replay\b", "run by tests/unit/eval/replay/test_replay.py"),
    (r"\bwebhooks (secret|test|list|replay)\b|cat memecourt\.toml", "run by tests/integration/test_webhooks.py"),
    (r"memecourt-eval reproduce\b(?!.*--demo)", "needs data sets: tests/unit/eval/reproduce/test_reproduce.py"),
    (r"\bcurl\b.*:9464", "asks what serves: tests/integration/test_monitoring.py"),
    (
        r"memecourt-eval (compare|export|score|report|run --resume|labels|subgroups)\b",
        "needs finished runs: test_report.py, test_run.py, test_label_figures.py, test_export_forms.py",
    ),
    (
        r"memecourt\.verify trial\.bundle|--anchor theirs",
        "needs another party's checkpoints: tests/unit/serving/docket/test_bundle.py",
    ),
    (r"\bmine\.toml", "needs a data set of one's own: tests/unit/eval/datasets/test_card_commands.py"),
    (r"\bmemes\.csv", "needs a table of one's own: test_plain_table.py, and test_first_figure.py from end to end"),
    (r"memecourt-eval ablate …", "leaves to the reader what is left out"),
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
