"""Import boundaries between folders (CONTRIBUTING.md), and generated files that are committed."""

import ast
import itertools
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.conftest import SLOW_FOLDERS
from tests.support.paths import ROOT

BIN = Path(sys.executable).parent
PACKAGES = ["court", "retrieval", "serving", "eval", "proto/memecourt"]
VARIADIC = {
    "Table", "Index", "select", "op.create_table", "c.line", "_splits", "_git", "struct.pack", "threads.submit",
    "with_options",
}  # fmt: skip
"""Functions that take any number of equal arguments (columns, points, options, words of a command)."""


def run(*command, cwd=ROOT):
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        # Without a home, buf would put its cache into the folder that it checks.
        env={"PATH": f"{BIN}:/usr/bin:/bin", "HOME": str(Path.home())},
    )


def test_import_contracts_hold():
    checked = run(BIN / "lint-imports", "--no-cache")
    assert checked.returncode == 0, checked.stdout
    assert re.search(r"\b1\d kept, 0 broken", checked.stdout)


def test_only_the_service_layer_imports_the_wire_types():
    """Only the modules that serve calls and convert between wire and court may import them."""
    allowed = {
        f"serving/{name}.py"
        for name in (
            "telemetry/rpc_calls",
            *(f"rpc/{part}" for part in ("convert", "status", "judge", "watch")),
            *(f"rpc/{part}" for part in ("docket", "precedents", "listings", "server")),
            *(f"rest/{part}" for part in ("app", "judging", "messages", "moderations", "operations")),
        )
    }
    importers = {
        path.relative_to(ROOT).as_posix()
        for folder in ("court", "retrieval", "serving", "eval")
        for path in (ROOT / folder).rglob("*.py")
        # The standalone verifier has no wire types.
        if re.search(r"^\s*(from|import) memecourt\b(?!\.verify)", path.read_text(), re.MULTILINE)
    }
    # The command line and the load tests are clients like any other.
    others = {path for path in importers - allowed if not path.startswith(("serving/cli/", "eval/perf/"))}
    assert not others
    assert "serving/rpc/judge.py" in importers


def test_arrays_and_processes_stay_in_the_backends():
    heavy = re.compile(r"^\s*(from|import) (numpy|PIL|httpx2|openai|onnxruntime|rapidocr|subprocess)\b", re.MULTILINE)
    importers = {
        path.relative_to(ROOT / "court").parts[0]
        for path in (ROOT / "court").rglob("*.py")
        if heavy.search(path.read_text())
    }
    assert importers == {"backends"}


@pytest.mark.parametrize("package", PACKAGES)
def test_calls_have_at_most_four_positional_arguments(package):
    """Except for those of variadic functions, and of compiled ones whose arguments have no names."""
    guilty = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node.func)}"
        for path in (ROOT / package).rglob("*.py")
        if "_pb2" not in path.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and sum(not isinstance(each, ast.Starred) for each in node.args) > 4
        and ast.unparse(node.func) not in VARIADIC
    ]
    assert not guilty


def test_packages_do_not_shadow_other_names():
    assert not (ROOT / "proto" / "__init__.py").exists()  # would shadow proto-plus
    folders = (*PACKAGES, "deploy", "integrations", "scripts", "tests")
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert len(sources) > 500
    guilty = [path.name for path in sources if re.search(r"^\s*import eval\b(?!\.)", path.read_text(), re.MULTILINE)]
    assert not guilty


def test_generated_code_matches_the_contract():
    checked = run(sys.executable, "scripts/generate_proto.py", "--check")
    assert checked.returncode == 0, checked.stderr


def test_openapi_description_matches_the_contract():
    checked = run(sys.executable, "scripts/openapi.py", "--check")
    assert checked.returncode == 0, checked.stderr


def test_contract_passes_buf_lint():
    checked = run(BIN / "buf", "lint", cwd=ROOT / "proto")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_part_of_the_contract_has_a_comment():
    """The line above a message, enum, field or value describes it."""
    lines = (ROOT / "proto/memecourt/v1/court.proto").read_text().splitlines()
    thing = re.compile(r"\s*(message|enum|service|rpc) \w+|\s+[\w.<>, ]+ \w+ = \d+;|\s+[A-Z_]+ = \d+;")
    bare = [line for before, line in itertools.pairwise(lines) if thing.match(line) and "//" not in before]
    assert not bare


def test_each_test_folder_belongs_to_a_tier():
    """Otherwise only ``make test-slow`` would collect it, and its fast tests would never run."""
    paths = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]["ini_options"]["testpaths"]
    )
    fast = set(
        re.findall(r"tests/\w+", re.search(r"^test:.*\n(\t.*)", (ROOT / "Makefile").read_text("utf-8"), re.M)[1])
    )
    slow = {folder.rstrip("/") for folder in SLOW_FOLDERS}
    assert fast | slow == paths and not fast & slow


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"])
def test_standard_project_files_exist(name):
    assert len((ROOT / name).read_text()) > 500


def test_walk_of_one_meme_links_to_existing_files_and_at_most_25():
    page = ROOT / "docs/explanation/one-meme.md"
    linked = {(page.parent / link).resolve() for link in re.findall(r"\]\(([^)#]+\.py)\)", page.read_text())}
    assert all(path.is_file() for path in linked)
    walked = [path for path in linked if "tests" not in path.parts]
    assert 20 <= len(walked) <= 25


def test_test_modules_share_through_support_alone():
    """Editing one file of tests must not break another."""
    imports = re.compile(
        r"^\s*(?:from|import) tests\.(?:\w+\.)*test_\w+|^\s*from tests[.\w]* import .*\btest_\w+", re.MULTILINE
    )
    guilty = [
        str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("*.py") if imports.search(path.read_text())
    ]
    assert not guilty
