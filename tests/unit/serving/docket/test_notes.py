"""Signed notes, checkpoints and keys of C2SP, against published vectors."""

import pytest

from serving.docket.log import notes
from serving.docket.log.errors import BadNote
from tests.support.notes import ENOCH_PUBLIC, ENOCH_SIGNED, PETER_SIGNED, SPEC_NOTE, SPEC_PUBLIC, TEXT

# From Go's golang.org/x/mod/sumdb/note (example_test.go, note_test.go), the origin of the format.
PETER = "PRIVATE+KEY+PeterNeumann+c74f20a3+AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz"
PETER_PUBLIC = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
# From C2SP's tlog-checkpoint; its key is not published, so only the text can be checked.
SPEC_CHECKPOINT = (
    "example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\n"
    "— example.com/behind-the-sofa Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=\n"  # noqa: E501
)


def test_note_is_signed_as_by_the_reference_implementation():
    key = notes.SigningKey.parse(PETER)
    assert str(key.verifier) == PETER_PUBLIC and key.secret() == PETER
    assert notes.sign_note(TEXT, [key]) == f"{TEXT}\n{PETER_SIGNED}"
    peter, enoch = notes.VerifierKey.parse(PETER_PUBLIC), notes.VerifierKey.parse(ENOCH_PUBLIC)
    both = f"{TEXT}\n{PETER_SIGNED}{ENOCH_SIGNED}"
    for keys in ([peter], [enoch], [peter, enoch]):
        assert notes.open_note(both, keys) == TEXT
    assert notes.open_note(SPEC_NOTE, [notes.VerifierKey.parse(SPEC_PUBLIC)]) == "This is an example message.\n"


def test_altered_unknown_and_malformed_signatures_are_refused():
    peter, enoch = notes.VerifierKey.parse(PETER_PUBLIC), notes.VerifierKey.parse(ENOCH_PUBLIC)
    note = f"{TEXT}\n{PETER_SIGNED}"
    with pytest.raises(BadNote, match="None of the given keys"):
        notes.open_note(note, [enoch])
    with pytest.raises(BadNote, match="None of the given keys"):
        notes.open_note(note, [])
    with pytest.raises(BadNote, match="altered"):
        notes.open_note(note.replace("answer", "question"), [peter])
    # One bad signature of a known key spoils the note, even beside a good one.
    spoilt = ENOCH_SIGNED.replace("ovTG01", "ovTG02")
    with pytest.raises(BadNote, match="altered"):
        notes.open_note(f"{TEXT}\n{PETER_SIGNED}{spoilt}", [peter, enoch])
    assert notes.open_note(f"{TEXT}\n{PETER_SIGNED}{spoilt}", [peter]) == TEXT
    for torn in (
        TEXT,
        TEXT + PETER_SIGNED,
        note[:-1],
        note.replace("— ", "- "),
        note.replace("PeterNeumann x", "PeterNeumann  x"),
        note.replace("AM=\n", "AM\n"),
        note.replace("AM=\n", "AN=\n"),  # sets bits that base64 ignores
        note.replace(" is ", "\ris "),
        "\ud800" + note,
        f"{TEXT}\n— PeterNeumann AAAA\n",
        f"{TEXT}\n" + PETER_SIGNED * 101,
        "a" * 1_100_000 + note,
    ):
        with pytest.raises(BadNote):
            notes.open_note(torn, [peter])


def test_text_may_contain_empty_lines():
    key = notes.SigningKey.create("a.example/log")
    text = "one\n\n— two\n\nthree\n"
    note = notes.sign_note(text, [key])
    assert notes.open_note(note, [key.verifier]) == text and len(notes.split_note(note)[1]) == 1
    for bad in ("", "no newline", "tab\there\n", "\ud800\n"):
        with pytest.raises(BadNote):
            notes.sign_note(bad, [key])


@pytest.mark.parametrize(("text", "kind"), [(PETER_PUBLIC, notes.VerifierKey), (PETER, notes.SigningKey)])
def test_mangled_keys_are_refused(text, kind):
    """Mangled as in note_test.go: every substring of the key, and every character incremented."""
    kind.parse(text)
    parts = {text[start:end] for start in range(len(text)) for end in range(start + 1, len(text) + 1)} - {text}
    altered = {text[:place] + chr(ord(text[place]) + 1) + text[place + 1 :] for place in range(len(text))}
    for bad in parts | altered:
        with pytest.raises(BadNote):
            kind.parse(bad)


def test_keys_of_other_kinds_are_refused():
    for bad in (
        "PeterNeumann+cc469956+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TWBADKEY==",  # too long, with a valid id
        "PeterNeumann+173116ae+ZRpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW",  # another algorithm, with a valid id
        "",
    ):
        with pytest.raises(BadNote):
            notes.VerifierKey.parse(bad)
    for name in ("", "two words", "a+b", "line\nbreak", "\x00"):
        with pytest.raises(BadNote, match="name of a key"):
            notes.SigningKey.create(name)


def test_private_key_is_not_revealed_in_repr_or_errors():
    key = notes.SigningKey.parse(PETER)
    assert "AYEKFA" not in repr(key) and "AYEKFA" not in str(key)
    for damaged in (PETER[:-4], PETER.replace("c74f20a3", "c74f20a4")):
        with pytest.raises(BadNote) as caught:
            notes.SigningKey.parse(damaged)
        assert "AYEKFA" not in str(caught.value)


def test_checkpoints_are_read_signed_and_opened():
    text, signatures = notes.split_note(SPEC_CHECKPOINT)
    spec = notes.read_checkpoint(text)
    assert (spec.origin, spec.size, spec.text) == ("example.com/behind-the-sofa", 20852163, text)
    assert [(name, id_.hex(), len(rest)) for name, id_, rest in signatures] == [(spec.origin, "033de0ae", 64)]
    key = notes.SigningKey.create("court.example/docket")
    note = notes.sign_checkpoint(key, key.name, 5, bytes(range(32)))
    assert notes.open_checkpoint(note, [key.verifier]) == notes.Checkpoint("court.example/docket", 5, bytes(range(32)))
    with pytest.raises(BadNote, match="another log"):
        notes.open_checkpoint(notes.sign_checkpoint(key, "other.example/docket", 5, bytes(32)), [key.verifier])
    # Witnesses may add lines below the text, and their own signatures.
    witness = notes.SigningKey.create("witness.example")
    more = notes.sign_note(f"{spec.text}witnessed\n", [witness])
    assert notes.read_checkpoint(notes.open_note(more, [witness.verifier])) == spec


@pytest.mark.parametrize(
    "text",
    [
        "a.example\n5\n",
        "a.example\n5\nAAAA\n",
        "a.example\n05\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n",
        "a.example\n-5\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n",
        "a.example\n٥\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n",
        "a.example\n5 \nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n",
        "a.example\n5\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I\n",
        "\n5\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n",
        "a.example\n5\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\nmore\n",
    ],
)
def test_malformed_checkpoints_are_refused(text):
    with pytest.raises(BadNote):
        notes.read_checkpoint(text)
