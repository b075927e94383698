"""The documentation site: its pages and links, and reference pages that match the code."""

import ast
import inspect
import re
import tomllib
from pathlib import Path

import click
import pytest
from google.rpc import code_pb2

from court.errors import BadPicture, BadRequest, Overrun, ReplyUnusable
from court.events import EVENT_KINDS
from court.verdict import ReviewReason
from eval.cli import cli as eval_cli
from memecourt.client import AsyncClient, Client
from memecourt.v1 import court_pb2 as wire
from memecourt_queue.cli import main as queue_cli
from retrieval.library.changes import NoSuchPrecedent
from retrieval.library.sources import SourceFormat
from scripts.diagrams import DIAGRAMS, svg
from scripts.docs_site import gather
from scripts.reference_docs import pages
from scripts.reference_formats import FORMATS
from serving.access.callers import NotAllowed
from serving.cli.main import cli
from serving.cli.settings import attribute_docs
from serving.docket.errors import RequestConflict
from serving.errors import Busy
from serving.rest.problems import problem_of
from serving.rpc.status import DEADLINE, status_of
from serving.settings import Settings
from tests.support import doc_blocks
from tests.support.paths import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "docs"
    gather(folder)
    return folder


def pages_in(nav):
    for entry in nav:
        for where in entry.values():
            yield from [where] if isinstance(where, str) else pages_in(where)


def test_every_page_is_in_the_navigation(site):
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    existing = {path.relative_to(site).as_posix() for path in site.rglob("*.md")}
    shown = {name for name in existing if name.startswith("source/")}  # source code that a page links to
    assert sorted(pages_in(nav)) == sorted(existing - shown)


def test_links_to_code_lead_to_source_pages(site):
    one_meme = (site / "explanation" / "one-meme.md").read_text()
    assert "](../source/serving/rpc/judge.py.md)" in one_meme
    shown = (site / "source" / "serving" / "rpc" / "judge.py.md").read_text()
    assert (ROOT / "serving" / "rpc" / "judge.py").read_text() in shown and "exclude: true" in shown
    linked = re.findall(r"\]\((?:\.\./)*[\w./-]+\.(?:py|proto|toml)\)", one_meme)
    assert not linked, "such links are broken in the site"


def test_diagrams_are_as_the_script_draws_them():
    assert len(DIAGRAMS) > 5
    for name, diagram in DIAGRAMS.items():
        assert (ROOT / "docs" / name).read_text() == svg(diagram), "python scripts/diagrams.py"


def test_wire_page_documents_every_field_method_and_enum_value(site):
    page = (site / "reference" / "wire.md").read_text()
    for message in wire.DESCRIPTOR.message_types_by_name.values():
        part = page.split(f"\n## {message.name}\n")[1].split("\n## ")[0]
        for field in message.fields:
            row = next(line for line in part.splitlines() if line.startswith(f"| `{field.name}` | {field.number} |"))
            assert len(row.split(" | ")[-1].strip(" |")) > 2, row
    for service in wire.DESCRIPTOR.services_by_name.values():
        for method in service.methods:
            assert f"\n### {service.name}.{method.name}\n" in page
    for enum in wire.DESCRIPTOR.enum_types_by_name.values():
        assert all(f"| `{value.name}` | {value.number} |" in page for value in enum.values)
    linked = set(re.findall(r"\]\(#(\w+)\)", page))
    assert linked <= {name.lower() for name in re.findall(r"^## (\w+)$", page, re.MULTILINE)}


def test_python_client_page_documents_every_public_method(site):
    page = (site / "reference" / "python-client.md").read_text()
    for kind in (Client, AsyncClient):
        public = [name for name, one in vars(kind).items() if not name.startswith("_") and inspect.isfunction(one)]
        assert len(public) > 10
        for name in public:
            part = page.split(f"\n### {kind.__name__}.{name}\n")[1].split("\n### ")[0]
            assert "def " in part and len(part.split("```")[2].strip()) > 10, name
    assert ":meth:" not in page and "'bytes | None'" not in page and "image: bytes | None = None" in page


def test_site_has_no_broken_links(site):
    for page in site.rglob("*.md"):
        if page.is_relative_to(site / "source"):
            continue  # source code has no real links
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if not target.startswith(("http:", "https:", "mailto:")):
                assert (page.parent / target).resolve().is_relative_to(site), f"{page.name}: {target}"
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_reference_pages_are_complete_and_machine_independent(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    made = pages()
    with click.Context(cli, **cli.context_settings) as context:
        for name in cli.list_commands(context):
            assert f"\n## memecourt {name}\n" in made["commands.md"]
    assert "\n## memecourt-queue\n" in made["commands.md"]
    for name, field in Settings.model_fields.items():
        assert f"`MEMECOURT_{name.upper()}`" in made["settings.md"] or not isinstance(field.default, str | int | None)
    assert "`MEMECOURT_TRIAL__LEAST_LABEL_MASS` | `0.05` |" in made["settings.md"]
    for event in EVENT_KINDS:
        assert f"\n## {event.model_fields['kind'].default}\n" in made["events.md"]
    assert "| `memecourt_worker_deaths_total` | counter |" in made["metrics.md"]
    assert "| `memecourt_queue_dead_total` | counter | `reason` |" in made["metrics.md"]
    assert "\n| `MemeCourtDown` | now | 1m |" in made["alerts.md"] and "`QueueGrows`" in made["alerts.md"]
    assert "\n| `POST /v1/judge` | `Court.Judge` | `judge` |" in made["http.md"]
    assert all(f"\n| `{reason}` |" in made["reasons.md"] for reason in ReviewReason)
    for text in made.values():
        assert str(ROOT) not in text and str(tmp_path) not in text and str(Path.home()) not in text


def test_formats_page_has_every_field_of_stored_classes(site):
    page = (site / "reference" / "formats.md").read_text()
    for _, title, _, models in FORMATS:
        part = page.split(f"\n### {title}\n")[1].split("\n### ")[0]
        for model in models:
            for name, field in model.model_fields.items():
                by_program = "Set by the program" in attribute_docs(model).get(name, "")
                assert f"\n| `{name}` | " in part or by_program, (title, name)
                assert not by_program or f"\n| `{name}` | " not in part, field
    assert "| `splits[].files` | list of text |" in page and "| `tasks[].votes.least` | whole number |" in page
    assert "| `said.NAME.labels` | list of text (required) |" in page and "| `predictions.jsonl` | the pred" in page
    assert "| `opened_at` | timestamp[us, tz=UTC] |" in page and "`entries`, `parts`, `known`" in page
    assert all(f"| `{layout}` | " in page for layout in SourceFormat) and "FacTool-KBQA" in page


def test_errors_page_has_every_reason_with_the_status_that_a_caller_gets(site):
    page = (site / "reference" / "errors.md").read_text()
    rows = set(re.findall(r"^\| `([A-Z_0-9]+)` \|", page, re.MULTILINE))
    assert len(rows) > 200
    for error in (
        Busy("Come again."),
        RequestConflict("Another request has that id."),
        NoSuchPrecedent("There is none."),
        Overrun("Too slow.", reason=DEADLINE),
        BadPicture("It is damaged.", reason="PICTURE_DAMAGED"),
        NotAllowed("Not here.", reason="NAMESPACE_NOT_ALLOWED"),
        ReplyUnusable("JUDGE", "ruling", "REPLY_EMPTY", "it was empty"),
        BadRequest("Too large.", reason="BODY_TOO_LARGE"),
    ):
        status = status_of(error)
        part = page.split(f"\n## {code_pb2.Code.Name(status.code)}\n")[1].split("\n## ")[0]
        assert f"\n| `{error.reason}` | {int(problem_of(status).status)} |" in part, error.reason
    raised_for = {
        node.value.value
        for folder in ("court", "retrieval", "serving")
        for path in (ROOT / folder).rglob("*.py")
        if "cli" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.keyword) and node.arg == "reason" and isinstance(node.value, ast.Constant)
    }
    # Handed to a function that fetches files, for `memecourt setup` alone.
    missing = raised_for - rows - {"TEXT_READER_DAMAGED"}
    assert sorted(one for one in missing if isinstance(one, str) and one.isupper()) == []


def test_every_console_block_is_run_or_exempt_with_a_reason():
    found = [command for page in doc_blocks.pages() for command in doc_blocks.commands(page)]
    assert len(found) > 100
    used = {pattern for command in found for pattern, _ in doc_blocks.NOT_RUN if re.search(pattern, command.line)}
    assert used == {pattern for pattern, _ in doc_blocks.NOT_RUN}, "a reason for a command that no longer exists"
    for command in found:
        page = (ROOT / command.page).read_text()
        assert command.line.splitlines()[0] in page
    # Commands not listed are run: tests/integration/test_docs_blocks.py uses the same list.
    run = [command for command in found if not command.why_not and command.page not in doc_blocks.TESTED_WHOLE]
    assert len(run) > 30
    unknown = [command for command in run if not re.match(r"(memecourt|memecourt-eval|python|cat)\b", command.line)]
    assert not unknown


def unknown_words(line):
    """Yields the subcommands and options of a command line that no program of ours has."""
    line = line.replace("\\\n", " ")
    programs = {"memecourt": cli, "memecourt-eval": eval_cli, "memecourt-queue": queue_cli}
    for found in re.finditer(r"(?<![\w./:-])(memecourt(?:-eval|-queue)?) ([^|\n#`;&)]*)", line):
        known, after_option = programs[found[1]], False
        for word in found[2].split(" -- ")[0].split():
            name = word.strip("[],.:").partition("=")[0]
            if name.startswith("--"):
                if name not in {each for one in known.params for each in (*one.opts, *one.secondary_opts)} | {"--help"}:
                    yield f"{found[0]}: {name}"
            elif isinstance(known, click.Group) and re.fullmatch(r"[a-z-]+", name) and not after_option:
                subcommand = known.get_command(click.Context(known, **cli.context_settings), name)
                if subcommand is None:
                    yield f"{found[0]}: {name}"
                    break
                known = subcommand
            after_option = name.startswith("--")


def test_commands_and_options_in_the_docs_exist():
    """Covers commands that are not run, and those in the middle of a sentence or table."""
    for page in doc_blocks.pages():
        prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        spans = [re.sub(r"\s*\n\s*", " ", span) for span in re.findall(r"`(memecourt[^`]+)`", prose)]
        lines = [command.line for command in doc_blocks.commands(page) if not command.line.startswith("docker ")]
        unknown = [word for line in (*spans, *lines) for word in unknown_words(line)]
        assert not unknown, f"{page.name}: {unknown}"


def test_tests_selected_by_a_keyword_in_the_docs_exist():
    quoted = [
        (file, keyword)
        for page in sorted((ROOT / "docs").rglob("*.md"))
        for file, keywords in re.findall(r"(test_\w+\.py)(?: -s)* -k \"?(\w+(?: or \w+)*)", page.read_text())
        for keyword in keywords.split(" or ")
    ]
    assert len(quoted) > 10
    for file, keyword in quoted:
        found = [
            path for path in (ROOT / "tests").rglob(file) if re.search(rf"def test_\w*{keyword}", path.read_text())
        ]
        assert found, f"no test of {file} has {keyword} in its name"


def test_every_reason_on_the_page_about_faults_exists():
    page = (ROOT / "docs/troubleshooting.md").read_text()
    named = set(re.findall(r"`([A-Z][A-Z_]{4,})`", page)) - set(code_pb2.Code.keys())
    code = "".join(
        path.read_text()
        for folder in ("court", "retrieval", "serving", "eval")
        for path in (ROOT / folder).rglob("*.py")
    )
    assert len(named) > 25
    assert sorted(one for one in named if not one.startswith("MEMECOURT_") and f'"{one}"' not in code) == []
