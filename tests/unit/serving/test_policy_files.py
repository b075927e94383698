"""Policy files: faults that are named, policies of others that are read, and what is listed because nothing matches."""

import json

import pytest
from click.testing import CliRunner

from court.policy import DEFAULT_POLICY, Clause, Policy
from serving.cli.main import cli
from serving.policy_files import faults_of, import_policy, to_toml

MARKDOWN = """# Kind Words

## INSTRUCTIONS
Answer with one digit.

## DEFINITIONS
- **Group**: people from Blueland, Plumsey or elsewhere.

## VIOLATES (1)
### insults
- **Name calling**: calls a group by what it is not.
- Says that a group is worth less.
### threats
- Announces harm to a group.

## SAFE (0)
- Jokes about oneself.

## Severity levels
- High: threats.

## EXAMPLES
- "People from Blueland are turnips" -> 1
- "I am a turnip" -> 0
- A remark without a label

### threats
- "We will flood Plumsey" -> VIOLATES
"""


def invoke(*words, status=0):
    done = CliRunner().invoke(cli, ["policy", *map(str, words)])
    assert done.exit_code == status, done.output
    return done.output


def clause(number, text="Says so.", **lists):
    return Clause(number=number, category="kind", text=text, **lists)


def policy(*clauses):
    return Policy(
        id="p", version="1", preamble='A "quoted" line\nand \x7f\t more', targets=("society",), clauses=clauses
    )


def test_examples_change_neither_the_digest_nor_what_records_hold():
    plain, tested = policy(clause("1")), policy(clause("1", violates=("a",), allows=("b",)))
    assert plain.digest == tested.digest and plain.text == tested.text
    assert "violates" not in tested.model_dump_json()
    assert Policy.model_validate_json(tested.model_dump_json()).clauses[0].violates == ()


@pytest.mark.parametrize(
    "one", [DEFAULT_POLICY, policy(clause("1", violates=('say "a"\n\u2028', "\\ b"), facts=True, reasons=("r",)))]
)
def test_file_of_a_policy_reads_back_as_the_policy(tmp_path, one):
    path = tmp_path / "policy.toml"
    path.write_text(to_toml(one), encoding="utf-8")
    assert Policy.load(path) == one


def test_faults_are_named_and_none_is_invented(tmp_path):
    assert not list(faults_of(DEFAULT_POLICY))
    faulty = policy(
        clause("1", violates=("Tea", "tea "), allows=("x",)), clause("2", text="SAYS  so.", allows=("TEA",))
    )
    assert list(faults_of(faulty)) == [
        "Clauses 1, 2 say the same.",
        "Clause 1 forbids an example that clause 2 allows.",
        "Clause 1 has an example twice.",
    ]
    path = tmp_path / "faulty.toml"
    path.write_text(to_toml(faulty))
    output = invoke("check", path, status=1)
    assert "Clauses 1, 2 say the same." in output and "Examples of both kinds are missing for: 2." in output
    (tmp_path / "none.toml").write_text("id = 1")
    assert "no policy: " in invoke("check", tmp_path / "none.toml", status=2)


def test_guard_model_policy_is_imported(tmp_path):
    (tmp_path / "policy.md").write_text(MARKDOWN)
    output = invoke("import", tmp_path / "policy.md", "--out", tmp_path / "own.toml")
    assert "Clauses: 3; examples: 3." in output
    for left_out in ("INSTRUCTIONS", "Severity levels", "example below EXAMPLES"):
        assert f"No counterpart: {left_out}" in output
    read = Policy.load(tmp_path / "own.toml")
    assert read.id == "kind-words" and [each.category for each in read.clauses] == [
        "Name calling",
        "insults",
        "threats",
    ]
    assert "Jokes about oneself" in read.preamble and "Plumsey" in read.preamble
    assert read.clauses[2].violates == ("We will flood Plumsey",)
    assert (read.clauses[0].violates, read.clauses[0].allows) == (
        ("People from Blueland are turnips",),
        ("I am a turnip",),
    )
    assert "is there already" in invoke("import", tmp_path / "policy.md", "--out", tmp_path / "own.toml", status=2)


def test_policy_pack_brings_its_validation_sets(tmp_path):
    (tmp_path / "policy.md").write_text(MARKDOWN)
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "a.csv").write_text(
        "content,label,category\nBring pepper,unsafe,threats\nHello,safe,threats\n"
    )
    rows = [{"text": "You owls", "expected": "1"}, {"text": "no label"}]
    (tmp_path / "datasets" / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "torn\n")
    (tmp_path / "datasets" / "notes.txt").write_text("some notes")
    found = import_policy(tmp_path)
    threats = found.policy.clauses[2]
    assert (threats.violates, threats.allows) == (("We will flood Plumsey", "Bring pepper"), ("Hello",))
    assert "You owls" in found.policy.clauses[0].violates and "file notes.txt" in found.left_out


@pytest.mark.parametrize("content", ["", "# Only a title\n", "## Definitions\n- a thing\n", b"\xff\xfe"])
def test_text_that_forbids_nothing_is_no_policy(tmp_path, content):
    path = tmp_path / "policy.md"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert "Error: " in invoke("import", path, "--out", tmp_path / "own.toml", status=2)
    assert not (tmp_path / "own.toml").exists()
