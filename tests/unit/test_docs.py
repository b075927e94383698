"""The documentation as a site: what it is gathered from, and reference pages that are those of the code."""

import re
import tomllib
from pathlib import Path

import click
import pytest

from court.events import EVENT_KINDS
from scripts.docs_site import gather
from scripts.reference_docs import pages
from serving.cli.main import cli
from serving.settings import Settings

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "docs"
    gather(folder)
    return folder


def named_in(nav):
    for entry in nav:
        for where in entry.values():
            yield from [where] if isinstance(where, str) else named_in(where)


def test_every_page_has_its_place_in_the_site(site):
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    there = {path.relative_to(site).as_posix() for path in site.rglob("*.md")}
    assert sorted(named_in(nav)) == sorted(there)


def test_no_page_of_the_site_links_to_what_is_no_page(site):
    for page in site.rglob("*.md"):
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if not target.startswith(("http:", "https:", "mailto:")):
                assert (page.parent / target).resolve().is_relative_to(site), f"{page.name}: {target}"
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_reference_pages_tell_everything_and_nothing_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    made = pages()
    with click.Context(cli) as context:
        for name in cli.list_commands(context):
            assert f"\n## memecourt {name}\n" in made["commands.md"]
    for name, field in Settings.model_fields.items():
        assert f"`MEMECOURT_{name.upper()}`" in made["settings.md"] or not isinstance(field.default, str | int | None)
    assert "`MEMECOURT_TRIAL__LEAST_LABEL_MASS` | `0.05` |" in made["settings.md"]
    for event in EVENT_KINDS:
        assert f"\n## {event.model_fields['kind'].default}\n" in made["events.md"]
    assert "| `memecourt_worker_deaths_total` | counter |" in made["metrics.md"]
    for text in made.values():
        assert str(ROOT) not in text and str(tmp_path) not in text and str(Path.home()) not in text
