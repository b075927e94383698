"""The package page: its README has no link that needs the repository, whether or not there is a site of the pages."""

import json
import subprocess
import sys

import pytest

from scripts.package_readme import RELATIVE, package_readme
from tests.support.paths import ROOT

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
