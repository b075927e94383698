"""TOML files of users are read with a byte order mark too: editors on Windows write one, and tomllib refuses it."""

import codecs
from importlib.resources import files

import pytest

from court.policy import DEFAULT_POLICY, Policy
from court.prompts.sets import open_set, packaged, source
from eval.arena.settings import read_criteria
from eval.models.open import read_models
from retrieval.facts.reading import read_trust
from serving.access import tokens
from serving.settings import Settings


@pytest.fixture
def write_marked(tmp_path):
    """Writes a file that begins with a byte order mark, and returns its path."""

    def write(text, name="file.toml"):
        path = tmp_path / name
        path.write_bytes(codecs.BOM_UTF8 + text.encode())
        return path

    return write


def test_settings_are_read(write_marked, monkeypatch):
    monkeypatch.setenv("MEMECOURT_CONFIG", str(write_marked("concurrent_trials = 7\n")))
    assert Settings().concurrent_trials == 7


def test_tokens_are_read_and_added_to(write_marked):
    path = write_marked("# callers\n")
    token = tokens.add(path, "pipeline", ["judge"], namespaces=None)
    assert [entry.sha256 for entry in tokens.read(path)] == [tokens.hash_of(token)]


def test_a_policy_is_read(write_marked):
    text = (files("court") / "policies" / "default.toml").read_text("utf-8")
    assert Policy.load(write_marked(text)) == DEFAULT_POLICY


def test_prompts_are_read_with_the_same_digest(write_marked, tmp_path):
    for name in ("proposer", "advocate", "judge"):
        write_marked(source("1", name), f"{name}.toml")
    assert open_set(str(tmp_path)).digest == packaged().digest


def test_trust_is_read(write_marked):
    assert read_trust(write_marked('[trust]\n"example.org" = 80\n')) == {"example.org": 80}


def test_criteria_are_read(write_marked, tmp_path):
    write_marked('[[criteria]]\nkey = "wit"\nwords = "Is it witty?"\n', "criteria.toml")
    assert read_criteria("criteria.toml", tmp_path)[0].key == "wit"


def test_models_are_read(write_marked):
    models = read_models(write_marked('[models.small]\nurl = "http://127.0.0.1:8000/v1"\nmodel = "small"\n'))
    assert list(models.models) == ["small"]
