"""Policies as tested code, over a real socket: an oracle obeys clauses to the letter, so planted faults are known."""

import json
import re
import sqlite3

import pytest
from click.testing import CliRunner

from court.policy import Policy
from eval.cli import cli
from eval.session.directory import CALLS
from eval.standin.replies import scripted_reply
from serving.cli.main import cli as court_cli
from tests.support.stand_ins import served

_CLAUSE = re.compile(r"^(\w+)\. \((.+?)\) Forbids (.+)$", re.MULTILINE)
_TEXT = re.compile(r"Text of the meme that is judged:\n\[begin \w+\]\n(.*?)\n\[end", re.DOTALL)
HEAD = 'id = "{id}"\nversion = "1"\npreamble = "People from Blueland are protected."\ntargets = ["society"]\n'
SHORT = ("rounds_min=1", "rounds_max=1", "captioner=false", "overlap=false")


class Literal:
    """A stand-in that rules by the first clause one of whose words the meme has, and rewords as it is told."""

    def __init__(self, rewording="Forbids kites"):
        self.rewording, self.rulings = rewording, 0

    def answer(self, payload):
        reply = scripted_reply(payload)
        contents = [each["content"] for each in payload["messages"]]
        parts = [part for each in contents for part in ([{"text": each}] if isinstance(each, str) else each)]
        words = "\n".join(part.get("text", "") for part in parts)
        if "Reword clause" in words:
            assert "kites" not in payload["messages"][0]["content"] and words.count("[begin ") == 2
            return json.dumps({"text": self.rewording})
        if reply is None or "harmful_strength" not in reply:
            return reply
        self.rulings += 1
        text, clauses = f" {_TEXT.search(words)[1].lower()} ", _CLAUSE.finditer(contents[0])
        named = next((one for one in clauses if any(f" {word} " in text for word in one[3].split(" or "))), None)
        strong, weak = ("harmful", "harmless") if named else ("harmless", "harmful")
        found = dict.fromkeys(("category", "clause", "target"), "none")
        if named:
            found = {"category": named[2], "clause": named[1]}
        ruled = {**json.loads(reply), f"{strong}_strength": "strong", f"{weak}_strength": "weak", **found}
        ruled |= {"label": "harmful" if named else "not harmful", "rationale": "It is weighed by what the meme says."}
        return json.dumps(ruled)

    def odds(self, payload):
        return {"A": 0.5, "B": 0.5}


class Deaf(Literal):
    """A stand-in that rules by a policy of its own, whichever is in force."""

    def answer(self, payload):
        own = {"role": "system", "content": "1. (kind 1) Forbids kites or boats or balloons or pepper"}
        return super().answer({**payload, "messages": [own, *payload["messages"][1:]]})


def clause(number, text, violates=(), allows=()):
    lists = "".join(
        f"{name} = {json.dumps(list(each))}\n" for name, each in (("violates", violates), ("allows", allows))
    )
    return f'\n[[clauses]]\nnumber = "{number}"\ncategory = "kind {number}"\ntext = "{text}"\n{lists}'


SOUND = clause(
    "1", "Forbids kites or balloons", ["They fly kites today", "Look at balloons here"], ["They sail boats"]
) + clause("2", "Forbids pepper", ["Pour pepper in the well", "More pepper for them"], ["A pinch of salt"])
FAULTY = (
    clause("1", "Forbids kites", ["They fly kites today", "Look at balloons here"], ["We mend kites for children"])
    + clause("2", "Forbids pepper", ["Pour pepper in the well"], ["We bake bread"])
    + clause("3", "Forbids pepper or wells", ["More pepper for them"], ["Dig wells here"])
    + clause("4", "Forbids ladders", ["They climb ladders now"], ["We fly kites with a friend"])
)


def policy(tmp_path, name, clauses):
    path = tmp_path / f"{name}.toml"
    path.write_text(HEAD.format(id=name) + clauses)
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def invoke(tmp_path, home):
    def call(*words, status=0, program=cli):
        places = {"MEMECOURT_HOME": str(home), "MEMECOURT_DOCKET": str(tmp_path / "docket.sqlite")}
        result = CliRunner(env=places).invoke(program, [str(word) for word in words], catch_exceptions=False)
        assert status is None or result.exit_code == status, result.output
        assert words[1] not in ("test", "suggest") or re.search(r"\d+ trials take \d+ calls", result.stderr)
        return result.stdout

    return call


def settings(url, *more):
    return [*more, "--llm-url", url, "--model", "planted", *(word for one in SHORT for word in ("--set", one))]


def trial_of(url, path, out, *more):
    return settings(url, "policy", "test", path, "--out", out, "--json", *more)


def test_planted_faults_are_found_and_none_is_invented(tmp_path, invoke):
    oracle = Literal()
    path = policy(tmp_path, "faulty", FAULTY)
    with served(oracle) as url:
        arguments = trial_of(url, policy(tmp_path, "sound", SOUND), tmp_path / "out")
        sound = json.loads(invoke(*arguments))
        assert sound["passed"] and sound["right"]["value"] == 1.0 and not sound["untested"] and not sound["wrong"]
        before = oracle.rulings
        assert json.loads(invoke(*arguments)) == sound
        assert oracle.rulings == before, "calls are stored"
        few = invoke(*trial_of(url, path, tmp_path / "o2", "--most-calls", "3"), status=3)
        assert few == "", "a policy that was tried in part has no figures"
        with sqlite3.connect(tmp_path / "o2" / CALLS) as calls:
            assert 0 < calls.execute("SELECT count(*) FROM calls").fetchone()[0] <= 3
        faulty = json.loads(invoke(*trial_of(url, path, tmp_path / "o2"), status=1))
    assert faulty["gaps"] == ["1"]  # balloons
    assert faulty["too_wide"] == ["1", "3"]
    assert faulty["clashes"] == [["4", "1"]]
    assert faulty["dead"] == ["3"]
    assert faulty["confusion"]["3"] == {"2": 1}
    assert not faulty["passed"]
    assert [(each["clause"], each["named"]) for each in faulty["wrong"]] == [
        ("1", ""),
        ("1", "1"),
        ("3", "3"),
        ("4", "1"),
    ]


def test_contradictory_pairs_show_whether_the_policy_is_read(tmp_path, invoke):
    other = clause("1", "Forbids boats", ["They sail boats"], ["They fly kites today"])
    path, against = policy(tmp_path, "one", SOUND), policy(tmp_path, "other", other)
    for oracle, right, status in ((Literal(), 2, 0), (Deaf(), 0, 1)):
        with served(oracle) as url:
            found = json.loads(
                invoke(*trial_of(url, path, tmp_path / f"out{right}", "--against", against), status=status)
            )
        assert (found["pairs"], found["pairs_right"]) == (2, right)


def test_an_error_has_another_exit_code_than_a_wrong_policy(tmp_path):
    path = policy(tmp_path, "bare", clause("1", "Forbids kites"))
    for words in (("test", path, "--out", tmp_path), ("suggest", path, "--clause", "2", "--out", tmp_path)):
        assert CliRunner().invoke(cli, ["policy", *map(str, words)]).exit_code == 2
    assert CliRunner().invoke(court_cli, ["policy", "check", __file__]).exit_code == 2


def test_changed_policy_is_compared_on_recorded_cases(tmp_path, invoke):
    old = policy(tmp_path, "old", clause("1", "Forbids kites"))
    new = policy(tmp_path, "new", clause("1", "Forbids boats") + clause("2", "Forbids pepper"))
    with served(Literal()) as url:
        own = ["--llm-url", url, "--model", "planted", "--policy", old, "--procedure", "full"]
        for text in ("They fly kites today", "They sail boats", "We bake bread"):
            invoke("judge", "--text", text, *own, program=court_cli, status=None)
        before = json.loads(invoke("policy", "diff", new, "--json"))
        assert before["cases"] == before["need_models"] == 3 and before["calls_needed"] >= 3 and not before["changed"]
        assert before["clause_gone"] == 0 and not before["calls_made"]
        few = json.loads(invoke(*settings(url, "policy", "diff", new, "--ask", "--most-calls", "2", "--json")))
        assert few["calls_made"] == 2 and few["calls_needed"] == before["calls_needed"] and few["compared"] < 3
        assert (
            list(few["not_compared"])
            == ["The 2 calls of --most-calls are made. Replies are kept: raise it, and go on."]
            and not few["need_models"]
        )
        after = json.loads(invoke(*settings(url, "policy", "diff", new, "--ask", "--json")))
        same = json.loads(invoke("policy", "diff", old, "--json"))
    assert same["compared"] == 3 and not same["changed"] and not same["need_models"]
    assert after["compared"] == 3 and after["calls_made"] > 0
    assert sorted(row[1:] for row in after["changed"]) == [
        ["HARMFUL", "1", "NOT_HARMFUL", ""], ["NOT_HARMFUL", "", "HARMFUL", "1"]]  # fmt: skip


def test_rewording_is_accepted_if_it_helps_new_examples_and_harms_none(tmp_path, invoke):
    clauses = clause(
        "1", "Forbids kites", ["They fly kites", "See the balloons", "Big balloons", "Our balloons"], []
    ) + clause("2", "Forbids pepper", ["Pour pepper"], ["We walk ladders home"])
    path = policy(tmp_path, "narrow", clauses)
    for name, rewording, accepted in (
        ("same", "Forbids kites", False),
        ("good", "Forbids kites or balloons", True),
        ("greedy", "Forbids kites or balloons or ladders", False),
    ):
        with served(Literal(rewording)) as url:
            words = settings(url, "policy", "suggest", path, "--clause", "1", "--out", tmp_path / name)
            found = invoke(*words, status=0 if accepted else 1)
        assert f"+ {rewording}\n" in found and f"{int(name == 'greedy')} lost elsewhere" in found
        assert found.endswith("Accepted.\n") is accepted
        assert (tmp_path / name / "policy.toml").exists() is accepted
    assert Policy.load(tmp_path / "good" / "policy.toml").clauses[0].text == "Forbids kites or balloons"
