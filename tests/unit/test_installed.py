"""Installed and imported packages: none with known vulnerabilities, and none that unpickles (SC-1)."""

import ast
import json
import subprocess
import sys

import httpx2
import pytest

from scripts.package_readme import RELATIVE, package_readme
from tests.support.paths import ROOT
from tests.support.sizes import FULL

PACKAGES = ("court", "retrieval", "serving", "eval", "proto/memecourt")
UNPICKLERS = {"pickle", "marshal", "shelve", "dill", "joblib", "jsonpickle"}
FORBIDDEN = {
    "eval", "exec", "compile", "os.system", "os.popen", "pickle.load", "pickle.loads", "pickle.Unpickler",
    "marshal.loads", "shelve.open", "yaml.load", "yaml.unsafe_load", "torch.load", "joblib.load", "dill.loads",
    "jsonpickle.decode",
}  # fmt: skip
"""Calls that execute, or may execute, their input; spelled as in the source."""
ALLOWED = {("retrieval/embed/clip_weights.py", "torch.load")}
"""Accepted because of ``weights_only=True``, which the test checks."""


WITH_ADVISORIES = "https://pypi.org/pypi/pillow/9.0.0/json"
"""A release with known vulnerabilities: an index that lists none for it has no advisories for others either."""


def dotted(node):
    """The name of what is called: ``torch.load``; empty for an expression."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.slow
def test_source_never_executes_its_input():
    calls: list[tuple[str, str, ast.Call]] = []
    imported = set()
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                calls.append((file, dotted(node.func), node))
            elif isinstance(node, ast.Import | ast.ImportFrom):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
                imported |= {(file, name) for name in names if name.partition(".")[0] in UNPICKLERS}
    assert imported == set()
    found = [(file, name, node) for file, name, node in calls if name in FORBIDDEN]
    assert {(path, name) for path, name, _ in found} <= ALLOWED
    for path, name, node in found:
        only_weights = [word.value for word in node.keywords if word.arg == "weights_only"]
        assert len(only_weights) == 1 and ast.unparse(only_weights[0]) == "True", f"{path}: {name}"
    numpy = [node for _, name, node in calls if name in ("np.load", "numpy.load")]
    for node in numpy:
        assert not any(word.arg == "allow_pickle" and ast.unparse(word.value) != "False" for word in node.keywords)
    shells = [(path, node.lineno) for path, _, node in calls if any(
        word.arg == "shell" and ast.unparse(word.value) != "False" for word in node.keywords
    )]  # fmt: skip
    assert shells == []


def test_court_and_server_import_no_package_that_unpickles():
    """Checks the modules imported at run time, including transitive imports."""
    program = (
        "import sys, serving.app, serving.cli.judge, retrieval.embed.builtin\n"
        "print(*sorted({'torch', 'joblib', 'dill', 'cloudpickle', 'shelve', 'marshal_loads'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.promise("SC-1", "0 known vulnerabilities in anything that is installed")
@pytest.mark.skipif(not FULL, reason="asks PyPI, in make test-full")
def test_installed_packages_have_no_known_vulnerabilities():
    try:
        answer = httpx2.get(WITH_ADVISORIES, timeout=20)
    except httpx2.TransportError:
        pytest.skip("needs the internet")
    if answer.status_code != httpx2.codes.OK:
        pytest.skip("needs the internet: a mirror has no page of a release")
    advisories = answer.json()["vulnerabilities"]
    assert advisories, "PyPI lists no advisories for a release that has some, so finding none elsewhere proves nothing"
    done = subprocess.run(["make", "audit"], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


README = (ROOT / "README.md").read_text("utf-8")


def test_links_lead_to_pages_of_the_site_where_one_is_named():
    made = package_readme(README, "https://memecourt.example/docs/")
    assert len(RELATIVE.findall(README)) > 20 and not RELATIVE.search(made)
    assert "[a decision over HTTP](https://memecourt.example/docs/engineer.html)" in made
    assert "](https://memecourt.example/docs/explanation/why-the-rule-is-code.html)" in made
    assert "![A trial in the console](https://memecourt.example/docs/console-trial.png)" in made
    assert "](https://memecourt.example/docs/measured-data.html#harmeme)" in made
    assert "source archive" not in made


def test_links_become_names_of_files_where_no_site_is_named():
    made = package_readme(README, None)
    assert not RELATIVE.search(made) and "files of the source archive" in made
    assert "[a decision over HTTP]" not in made and "a decision over HTTP (`docs/engineer.md`)" in made
    assert "*A trial in the console*" in made


def test_built_metadata_has_no_relative_link():
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "metadata"]
    metadata = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
    assert metadata["readme"]["content-type"] == "text/markdown" and "# MemeCourt" in metadata["readme"]["text"]
    assert not RELATIVE.search(metadata["readme"]["text"])


@pytest.mark.parametrize("readme", sorted(ROOT.glob("integrations/*/README.md")), ids=lambda path: path.parent.name)
def test_readmes_of_other_packages_have_no_relative_link(readme):
    assert not RELATIVE.search(readme.read_text("utf-8"))
