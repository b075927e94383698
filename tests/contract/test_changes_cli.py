"""Commands that change single precedents: the same for a library on disk and one in a database."""

import hashlib
import json
import re

import pytest
from click.testing import CliRunner

from court.errors import BadLibrary
from court.verdict import Label
from retrieval import open as choose
from retrieval.library.changes import ChangeKind, Recorded
from retrieval.library.edit import add_precedent
from retrieval.library.postgres.address import Address
from retrieval.library.postgres.push import push_library
from retrieval.library.sources import Provenance
from retrieval.open import open_writer
from serving.cli import edit_precedents
from serving.cli.main import cli
from tests.support.encoders import WordEncoder, picture_of
from tests.support.libraries import ENCODER, PICTURES, drawn_library

SIGNED = ("--who", "ada", "--why", "as was decided")
MADE_BY = {"who": "ada", "why": "as was decided"}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMECOURT_HOME", str(tmp_path / "home"))
    # Replaces an encoder that takes seconds to load.
    for module in (choose, edit_precedents):
        monkeypatch.setattr(module, "load_encoder_for", lambda place, encoder: ENCODER)


@pytest.fixture(params=["disk", "database"])
def place(request, tmp_path):
    """Forty memes, of which drawn-0 is harmful and drawn-1 not."""
    library = drawn_library(tmp_path / "library", 7, 40)
    with open_writer(library.root) as writer:
        writer.relabel("drawn-0", Label.HARMFUL, **MADE_BY)
        writer.relabel("drawn-1", Label.NOT_HARMFUL, **MADE_BY)
    compacted = CliRunner().invoke(cli, ["precedents", "compact", str(library.root)])
    assert compacted.exit_code == 0, compacted.output
    if request.param == "disk":
        return library.root
    address: Address = request.getfixturevalue("database")
    push_library(library.open(library.root, None), address)
    return address


def call(*arguments):
    result = CliRunner().invoke(cli, ["precedents", *(str(one) for one in arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result.exit_code, result.output


def call_successfully(*arguments):
    code, output = call(*arguments)
    assert code == 0, output
    return output


def history(place, *ids):
    return [Recorded.model_validate(one) for one in json.loads(call_successfully("history", place, *ids, "--json"))]


def current(place, id_):
    """Returns the meme after its last change."""
    return history(place, id_)[-1].change.after


def test_each_change_is_numbered_printed_and_recorded(place, tmp_path):
    picture = tmp_path / "picture.png"
    picture.write_bytes(PICTURES[1] or b"")
    added = call_successfully(
        "add-one", place, "new", "harmful", "--text", "my cat sings", "--picture", picture, "--category", "mockery",
        "--source", "reviews", "--split", "live", "--namespace", "shop", "--language", "en", "--policy", "p1", *SIGNED,
    )  # fmt: skip
    assert added.splitlines()[-1] == "change 3: added new"
    meme = current(place, "new")
    assert meme is not None
    assert (meme.label, meme.text, meme.categories, meme.verified) == (
        Label.HARMFUL,
        "my cat sings",
        ("mockery",),
        True,
    )
    assert (meme.source, meme.split, meme.namespace, meme.language, meme.policy) == (
        "reviews", "live", "shop", "en", "p1",
    )  # fmt: skip
    assert (meme.has_text, meme.has_picture, meme.who) == (True, True, "ada")
    assert meme.bytes_sha256 == hashlib.sha256(picture.read_bytes()).hexdigest()

    assert call_successfully("relabel", place, "drawn-0", "not_harmful", *SIGNED) == (
        "change 4: relabelled drawn-0: harmful to not harmful\n"
    )
    assert call_successfully("remove", place, "drawn-1", *SIGNED) == "change 5: removed drawn-1\n"
    assert (
        call_successfully("revoke", place, 5, "--who", "bea", "--why", "it was sound")
        == "change 6: revoked 5, drawn-1\n"
    )
    assert [(one.change.kind, one.revoked_by) for one in history(place)][2:] == [
        (ChangeKind.ADD, None), (ChangeKind.RELABEL, None), (ChangeKind.REMOVE, 6), (ChangeKind.REVOKE, None),
    ]  # fmt: skip

    lines = call_successfully("history", place).splitlines()
    assert len(lines) == 12
    assert re.fullmatch(r" {3}5  \d{4}-\d\d-\d\d \d\d:\d\d  ada {18}removed drawn-1  \(revoked by 6\)", lines[8])
    assert re.fullmatch(r" {3}6  \d{4}-\d\d-\d\d \d\d:\d\d  bea {18}revoked 5, drawn-1", lines[10])
    assert lines[11] == "      “it was sound”"
    assert [one.change.number for one in history(place, "drawn-1")] == [2, 5, 6]
    assert call_successfully("history", place, "drawn-30") == "Nothing was changed one by one.\n"
    assert history(place, "drawn-30") == []


def test_json_output_is_the_change(place):
    change = json.loads(call_successfully("remove", place, "drawn-2", *SIGNED, "--json"))
    assert (change["number"], change["kind"], change["meme"], change["who"]) == (3, "remove", "drawn-2", "ada")
    undone = json.loads(call_successfully("revoke", place, 3, *SIGNED, "--json"))
    assert (undone["number"], undone["revokes"], undone["after"]["id"]) == (4, 3, "drawn-2")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("remove", "nobody"), "There is no precedent with the id nobody"),
        (("relabel", "nobody", "harmful"), "There is no precedent with the id nobody"),
        (("relabel", "drawn-0", "harmful"), "has that label already"),
        (("revoke", "7"), "There is no change 7 in the history"),
        (("revoke", str(2**70)), f"There is no change {2**70} in the history"),
        (("add-one", "drawn-0", "harmful", "--text", "a cat"), "There is a precedent with the id drawn-0 already"),
        (("add-one", " ", "harmful", "--text", "a cat"), "1 to 200 characters"),
        (("add-one", "x" * 201, "harmful", "--text", "a cat"), "1 to 200 characters"),
        (("add-one", "new", "harmful", "--text", " "), "a picture, or a text whose script"),
        (("add-one", "new", "harmful", "--picture", "no such file"), "does not exist"),
    ],
)
def test_invalid_changes_are_errors_and_change_nothing(place, arguments, message):
    before = history(place)
    code, output = call(arguments[0], place, *arguments[1:], *SIGNED)
    assert code in (1, 2) and message in output, output
    assert "Traceback" not in output
    assert history(place) == before


def test_truncating_a_text_is_reported(place):
    output = call_successfully("add-one", place, "long", "harmful", "--text", "word " * 60, *SIGNED)
    assert output.splitlines()[-2:] == [
        "The text is longer than the encoder reads; its end is not compared.",
        "change 3: added long",
    ]


def test_control_characters_are_printed_escaped(place):
    call_successfully(
        "add-one", place, "a\u202eb", "harmful", "--text", "a cat", "--who", "ada\x1b[2J", "--why", "so\x07"
    )
    output = call_successfully("history", place, "a\u202eb")
    assert "added a<U+202E>b" in output and "ada<U+001B>[2J" in output and "so<U+0007>" in output
    assert not {"\u202e", "\x1b", "\x07"} & set(output)


def test_only_the_encoder_of_the_library_embeds_its_precedents(place):
    arguments = {"id_": "new", "label": Label.HARMFUL, "text": "", "picture": picture_of(PICTURES[2] or b""), **MADE_BY}
    with open_writer(place) as writer:
        assert writer.encoder == ENCODER.identity
        with pytest.raises(BadLibrary) as refused:
            add_precedent(writer, WordEncoder("other words"), **arguments)
        assert refused.value.reason == "LIBRARY_FOREIGN"
        change, cut = add_precedent(writer, ENCODER, **arguments, provenance=Provenance(split="live"))
    assert (change.number, cut) == (3, False)
    meme = current(place, "new")
    assert meme is not None
    assert (meme.has_text, meme.has_picture, meme.source, meme.split) == (False, True, "ada", "live")
