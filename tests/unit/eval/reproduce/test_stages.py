"""Tests of papers as data: figures by path, tables, claims, plans."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from court.errors import BadRequest
from eval.arena.events import Judged
from eval.arena.folder import ArenaFolder
from eval.cli import cli
from eval.commands.reproduce import PAPERS
from eval.datasets.known import find_card
from eval.datasets.read import SYNTHETIC_KEY, read_split
from eval.probe.folder import REWRITTEN, SCORED, ProbeFolder, Scored, Step
from eval.reproduce.demonstrations import DEMONSTRATIONS, Demonstration, draw_benchmarks
from eval.reproduce.outcome import ClaimVerdict, Reached, Reproduced
from eval.reproduce.paper import find, read_paper
from eval.reproduce.report import reproduced_sections
from eval.reproduce.stages import plan_stages
from eval.witness.run import WitnessFolder

CARD = {"value": 0.85, "low": 0.78, "high": 0.92}


def run(*words, code=0):
    result = CliRunner().invoke(cli, ["reproduce", *map(str, words)])
    assert result.exit_code == code, result.output
    return result


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("arms[arm=b].n", 4),
        ("arms[arm=b].labels[1].f1", 0.5),
        ("arms[arm=b&n=4].n", 4),
        ("single.name", "x"),
        ("rows[0=test][2]", 9),
        ("arms[arm=c].n", None),
        ("arms.n", None),
        ("arms[7]", None),
        ("nothing.of[0].that", None),
    ],
)
def test_figures_are_found_by_path(path, found):
    content = {
        "arms": [{"arm": "a", "n": 3}, {"arm": "b", "n": 4, "labels": [{"f1": 0.1}, {"f1": 0.5}]}],
        "single": [{"name": "x"}],
        "rows": [["train", 1, 2], ["test", 8, 9]],
    }
    assert find(content, path) == found


@pytest.mark.parametrize("name", PAPERS)
def test_every_published_figure_of_a_table_is_found(name):
    paper = read_paper(name)
    found = Reproduced(paper, {}, {}).tables()
    assert all(cell.reached is Reached.NOT_RUN for cells in found.values() for cell in cells)
    # A row that quotes a source has at least one figure there: a path with a slip would find none.
    for one in paper.tables:
        named = {cell.row for cell in found[one.id] if cell.published is not None}
        assert [row.name for row in one.rows if row.cite and row.name not in named] == []


def test_published_mean_is_printed_as_the_paper_has_it():
    paper = read_paper("memearena")
    # The mean of the paper's rounded cells would be .90.
    assert find(paper.figures(), "ndcg.own[4]") == 0.89
    assert any(row.cite == "ndcg.own[4]" for table in paper.tables for row in table.rows)


@pytest.mark.parametrize("name", PAPERS)
def test_rows_claims_and_stages_of_a_paper_name_stages_that_there_are(name):
    for paper in (read_paper(name), read_paper(name).demonstrated()):
        stages = {one.id for one in paper.stages}
        assert len(stages) == len(paper.stages) and (paper.differs or paper.preset)
        assert {row.stage for one in paper.tables for row in one.rows if row.stage} <= stages
        assert {part.stage for one in paper.claims for part in one.parts} <= stages
        assert all(one.parts or one.why for one in paper.claims)
        assert len({one.id for one in paper.tables}) == len(paper.tables)
    assert name in DEMONSTRATIONS


def outcome(**changed):
    of_true = {"recall:True": CARD | changed, "f1:True": CARD}
    witness = {"arm": "witness", "n": 10, "true": 8, **of_true}
    lesser = {"arm": "no-rank", "against": {"value": -0.2, "low": -0.3, "high": -0.1}}
    return Reproduced(read_paper("emulate"), {"kbqa": {"arms": [witness, lesser]}}, {})


def test_cells_say_whether_the_published_figure_is_within_ours_and_can_occur():
    cells = {(cell.row, cell.figure): cell for cell in outcome().tables()["Table 2"]}
    f1 = cells["EMULATE, FacTool-KBQA", "F1 of True"]
    assert (f1.published, f1.ours.value, f1.n, f1.reached) == (0.91, 0.85, 10, Reached.WITHIN)
    assert f1.difference == pytest.approx(-0.06) and f1.occurs is None
    # Of 8 true claims no number is 0.92 of them.
    recall = cells["EMULATE, FacTool-KBQA", "recall of True"]
    assert recall.occurs is False and recall.reached is Reached.UNREACHABLE
    shares = np.round(np.arange(9) / 8, 2)
    assert not np.any(shares == recall.published)
    assert cells["FIRE, BingCheck", "macro-F1"].reached is Reached.NOT_RUN


def test_claim_needs_every_part_and_says_what_is_missing():
    found = {claim.id: claim for claim in outcome().claims()}
    assert found["C1"].verdict is ClaimVerdict.UNTESTED and "bench: accuracy without ranking" in found["C1"].why
    paper = read_paper("emulate")
    paper = paper.model_copy(
        update={"claims": tuple(one.model_copy(update={"parts": one.parts[:1]}) for one in paper.claims)}
    )
    assert Reproduced(paper, outcome().figures, {}).claims()[0].verdict is ClaimVerdict.HOLDS
    worse = {"kbqa": {"arms": [{"arm": "no-rank", "against": {"value": 0.2, "low": 0.1, "high": 0.3}}]}}
    assert Reproduced(paper, worse, {}).claims()[0].verdict is ClaimVerdict.FAILS
    titles = [
        section.title for section in reproduced_sections(outcome(), dict.fromkeys([s.id for s in paper.stages], "c"))
    ]
    assert {"Table 2: The witness beside other methods", "What differs from the paper"} <= set(titles)


def test_plan_says_what_to_fetch_and_which_models_are_missing(tmp_path):
    output = run("emulate", "--data", tmp_path, "--out", tmp_path / "study", "--dry-run").output
    assert "bingcheck.jsonl is missing: BingCheck's claims" in output and "has no main" in output
    assert "5,126 to 55,920" in output and not (tmp_path / "study").exists()
    output = run("climatememes", "--out", tmp_path / "study", code=1).output
    assert "No stage can run" in output and "mainlp/ClimateMemes" in output
    limited = json.loads(run("emulate", "--out", tmp_path / "s", "--limit", 5, "--dry-run", "--json").stdout)
    assert limited["plan"][0]["calls"] == "30 to 400"


def test_stage_calls_the_server_that_the_file_of_models_names(tmp_path):
    (tmp_path / "dataset").mkdir()
    models = {"LLaVA-v1.6-7B": {"url": ("http://a/v1", "http://b/v1"), "model": "llava"}}
    plans = plan_stages(read_paper("climatememes"), tmp_path, tmp_path, models, tables={}, limit=5)
    stance = next(plan for plan in plans if plan.spec.id == "stance-llava")
    words = dict(zip(stance.words, stance.words[1:], strict=False))
    assert words["--llm-url"] == "http://a/v1,http://b/v1" and words["--model"] == "llava" and words["--limit"] == "5"
    assert not stance.missing and "has no Molmo-7B-D" in next(p for p in plans if p.spec.id == "stance-molmo").missing
    assert "it needs the stage stance-molmo" in next(p for p in plans if p.spec.id == "captions-molmo").missing


def test_limit_reaches_arenas_and_probes(tmp_path):
    import tomllib

    def planned(name, limit):
        return {
            one.spec.id: one for one in plan_stages(read_paper(name), tmp_path, tmp_path, {}, tables={}, limit=limit)
        }

    arena = planned("memearena", 10)
    sample = tomllib.loads(arena["arena"].content.replace(str(tmp_path), "DATA"))["arena"]["sample"]
    # Ten memes of three data sets: four each at most. Those of the file and --limit would be a contradiction.
    assert [one["memes"] for one in sample] == [4, 4, 4] and "--limit" not in arena["arena"].words
    assert (
        tomllib.loads(arena["detect"].content)["arena"]["sample"]
        == tomllib.loads(arena["arena"].content)["arena"]["sample"]
    )
    assert [one["memes"] for one in planned("memearena", 900)["arena"].request["tables"]["arena"]["sample"]] == [
        250
    ] * 3
    assert planned("probench", 10)["arena"].words[-2:] == ("--limit", "10")
    assert planned("adammeme", 10**20)["gpt-4o"].memes(10**20, read=False) == 1577
    probe = planned("adammeme", 9)["gpt-4o"]
    assert [one["memes"] for one in probe.request["tables"]["probe"]["sample"]] == [
        3,
        3,
        3,
    ] and "--limit" not in probe.words
    demo = plan_stages(read_paper("adammeme").demonstrated(), tmp_path, tmp_path, {}, tables={}, limit=5)
    assert demo[0].words[-2:] == ("--limit", "5") and "--limit" not in demo[-1].words
    # A finished stage is not taken for one about other memes, though its command is the same.
    arena["arena"].file.parent.mkdir()
    arena["arena"].store({})
    with pytest.raises(BadRequest, match="of another reproduction"):
        planned("memearena", 900)["arena"].stored()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"url": ("http://a/v1",), "model": "m"}, "--llm-url http://a/v1 --model m --server-name m"),
        ({"model": "qwen2.5-vl-7b"}, "--vllm qwen2.5-vl-7b --server-name qwen2.5-vl-7b"),
    ],
)
def test_court_is_run_at_the_model_s_server_or_one_that_is_started(model, words, tmp_path):
    (tmp_path / "harm-c").mkdir()
    plans = plan_stages(
        read_paper("memecourt"), tmp_path, tmp_path, {"7b": model}, tables={}, more=("--encoder", "builtin")
    )
    planned = {plan.spec.id: plan for plan in plans}
    command = " ".join(planned["7b-harm-c"].words)
    assert f" {words} --calls " in command and not planned["7b-harm-c"].missing
    assert command.endswith("--preset as-published --drop-precedents --encoder builtin --seed 0")
    keyed = plan_stages(read_paper("memecourt"), tmp_path, tmp_path, {"7b": {**model, "api_key_env": "KEY"}}, tables={})
    missing = {plan.spec.id: plan for plan in keyed}["7b-harm-c"].missing
    assert "leave api_key_env out of [models.7b]" in missing and "MEMECOURT_LLM__API_KEY" in missing
    assert "has no main" in planned["main-harm-c"].missing and "main-harm-c" in planned["main-7b"].missing


def test_comparison_takes_the_targets_that_there_are(tmp_path):
    for name in ("harm-c", "fhm", "mami"):
        (tmp_path / name).mkdir()
    names = ("GPT-4o", "Step-1o", "controller", "controller-2", "controller-3")
    models = {name: {"url": "http://a/v1", "model": name} for name in names}
    plans = {plan.spec.id: plan for plan in plan_stages(read_paper("adammeme"), tmp_path, tmp_path, models, tables={})}
    folders = [word for word in plans["compare"].words if word.endswith("-run")]
    assert [folder.rsplit("/")[-1] for folder in folders] == ["step-1o-run", "gpt-4o-run"]
    del models["Step-1o"]
    (*_, compare, _) = plan_stages(read_paper("adammeme"), tmp_path, tmp_path, models, tables={})
    assert "needs two of the stages" in compare.missing


def test_stage_with_other_arguments_is_refused(tmp_path):
    (first, *_) = plan_stages(read_paper("emulate"), tmp_path, tmp_path, {}, tables={})
    first.file.parent.mkdir()
    first.store({"arms": []})
    assert first.stored() == {"arms": []}
    (other, *_) = plan_stages(read_paper("emulate"), tmp_path, tmp_path, {}, tables={}, published=False)
    with pytest.raises(BadRequest, match="of another reproduction: memecourt-eval witness"):
        other.stored()
    # Figures of one model are none of another that is called "main", too.
    (other, *_) = plan_stages(read_paper("emulate"), tmp_path, tmp_path, {"main": {"model": "m"}}, tables={})
    with pytest.raises(BadRequest, match="of another reproduction"):
        other.stored()
    # Written beside and renamed: a process that is killed leaves no half of a file.
    inode = first.file.stat().st_ino
    first.store({"arms": [1]})
    assert first.stored() == {"arms": [1]} and first.file.stat().st_ino != inode


def test_finished_stage_stands_wherever_its_folder_and_server_are(tmp_path):
    (tmp_path / "data" / "harm-c").mkdir(parents=True)

    def planned(out, **model):
        models = {"7b": {"model": "m", **model}}
        plans = plan_stages(read_paper("memecourt"), tmp_path / out, tmp_path / "data", models, tables={})
        return next(plan for plan in plans if plan.spec.id == "7b-harm-c")

    began = planned("one", url=("http://a/v1",))
    began.file.parent.mkdir(parents=True)
    began.store({"extreme": []})
    (tmp_path / "one").rename(tmp_path / "two")
    for model in ({"url": ("http://b/v1", "http://c/v1")}, {}):
        assert planned("two", **model).stored() == {"extreme": []}
    # All stages of a paper have one store of calls: two names of one model cost the calls of one.
    assert f"--calls {tmp_path}/one/stages/calls.sqlite" in " ".join(began.words)


def test_models_without_an_address_are_served_where_the_command_can(tmp_path):
    models = {
        name: {"url": ("http://a/v1",), "model": name} for name in ("GPT-4o", "Gemini 2", "Step-1o", "Qwen2.5-VL-32B")
    }
    models |= {"own": {"model": "org/own"}, "same": {"model": "org/own"}}
    for name in ("harm-c", "fhm", "mami"):
        (tmp_path / name).mkdir()
    plans = {one.spec.id: one for one in plan_stages(read_paper("memearena"), tmp_path, tmp_path, models, tables={})}
    assert plans["arena"].words[-2:] == ("--vllm", "org/own") and not plans["arena"].missing
    assert plans["detect"].missing == "its command starts no vLLM: give a url for org/own"
    probes = plan_stages(read_paper("adammeme"), tmp_path, tmp_path, models, tables={})
    assert not any("--vllm" in plan.words for plan in probes)
    (_, stance, *_) = plan_stages(
        read_paper("climatememes"), tmp_path, tmp_path, {"LLaVA-v1.6-7B": {"model": "org/llava"}}, tables={}
    )
    assert " --vllm org/llava --server-name org/llava " in " ".join(stance.words)


def test_calls_are_planned_for_the_memes_that_there_are(tmp_path):
    draw_benchmarks(tmp_path / "data", test=16, size=(320, 240))
    # As if it were the paper's.
    (tmp_path / "data" / "harm-c" / SYNTHETIC_KEY).unlink()
    (tmp_path / "models.toml").write_text(
        '[models.main]\nmodel = "m"\n[models.7b]\nmodel = "m"\nmost_calls = 9\n[models.32b]\nmodel = "b"\n'
    )

    def plan(*words):
        common = ("--data", tmp_path / "data", "--models", tmp_path / "models.toml", "--out", tmp_path / "study")
        shown = json.loads(run("memecourt", *common, "--dry-run", "--json", *words).stdout)["plan"]
        return {row["stage"]: (row["calls"], row["state"]) for row in shown}

    memes = read_split(find_card("harm-c"), tmp_path / "data" / "harm-c", "test").memes
    rest = [meme for meme in memes if meme.source_label != "somewhat harmful"]
    found = plan()
    assert found["main-harm-c"] == (f"{len(rest) * 55:,} to {len(rest) * 199:,}", "to run") and 0 < len(rest) < 16
    assert "holds a synthetic benchmark" in found["main-harm-p"][1]
    assert found["7b-harm-c"][1] == "leave most_calls out of [models.7b], as its command has none"
    assert "has no 3b, but 32b" in found["3b-harm-c"][1]
    # As served, somewhat harmful memes are judged, too, and trials take further calls.
    assert plan("--as-served")["main-harm-c"][0] == f"{16 * 75:,} to {16 * 219:,}"
    assert plan("--limit", 2)["main-harm-c"][0] == "110 to 398"
    limited = json.loads(run("memearena", "--out", tmp_path / "s", "--limit", 10, "--dry-run", "--json").stdout)
    assert limited["plan"][0]["calls"] == f"{12 * 127:,} to {12 * 130:,}"


@pytest.mark.parametrize(
    ("words", "content", "message"),
    [
        (("memecourt", "--demo"), '[models.a]\nmodel = "m"', "--demo has models of its own"),
        (("memearena",), 'arena = 5\n[models.a]\nmodel = "m"', "tables that nobody reads: arena"),
        (("emulate",), '[probe]\n[models.a]\nmodel = "m"', "tables that nobody reads: probe"),
    ],
)
def test_tables_and_options_without_a_reader_are_refused(words, content, message, tmp_path):
    (tmp_path / "models.toml").write_text(content)
    options = ("--models", tmp_path / "models.toml", "--out", tmp_path / "s", "--dry-run")
    assert message in run(*words, *options, code=2).output


def test_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "holiday.png").touch()
    assert "holds no reproduction" in run("emulate", "--demo", "--out", tmp_path, "--yes", code=1).output
    (tmp_path / "s" / "stages").mkdir(parents=True)
    (tmp_path / "s" / "stages" / "bingcheck.json").touch()
    refused = run("probench", "--demo", "--out", tmp_path / "s", "--resume", "--yes", code=2).output
    assert "holds another reproduction, with bingcheck" in refused


def test_comparison_waits_for_stages_that_failed_and_is_made_anew_of_more(tmp_path, monkeypatch):
    monkeypatch.setattr("eval.commands.reproduce.DEMONSTRATIONS", {"adammeme": Demonstration(lambda _: {})})
    paper = read_paper("adammeme")
    demonstrated = paper.demonstrated()
    failing, called = {"gpt-4o"}, []

    def run_stage(plan):
        called.append(plan.spec.id)
        if plan.spec.id in failing:
            return None, "no server"
        plan.store({})
        return {}, ""

    monkeypatch.setattr("eval.commands.reproduce._run_stage", run_stage)
    monkeypatch.setattr("eval.commands.reproduce.read_paper", lambda _: paper)
    ready = [one.model_copy(update={"models": (), "needs": {}}) for one in demonstrated.stages]
    monkeypatch.setattr(type(paper), "demonstrated", lambda _: demonstrated.model_copy(update={"stages": tuple(ready)}))
    again = ("adammeme", "--demo", "--out", tmp_path / "s", "--yes", "--resume")
    output = run(*again, code=3).output
    assert "The stage compare stands: it needs the stage gpt-4o" in output and "compare" not in called
    failing.clear()
    run(*again)
    assert called == ["llava-v1-6-7b", "gpt-4o", "gpt-4o", "compare"]
    ready[-1] = ready[-1].model_copy(update={"title": "t", "command": (*ready[-1].command, "{out}/further-run")})
    run(*again)
    assert called[-1] == "compare" and len(called) == 5


def test_models_and_tables_of_a_stage_become_its_file_of_models(tmp_path):
    import tomllib

    paper = read_paper("emulate")
    spec = paper.stages[0].model_copy(update={"tables": {"arena": {"levels": 5, "judges": ["main"]}}})
    models = {"main": {"url": "http://a/v1", "model": "m x"}}
    (plan,) = plan_stages(
        paper.model_copy(update={"stages": (spec,)}), tmp_path, None, models, tables={"arena": {"levels": 3}}
    )
    read = tomllib.loads(plan.content)
    assert read == {"models": models, "arena": {"levels": 3, "judges": ["main"]}}
    assert "http://a/v1" not in str(plan.request) and plan.missing.startswith("bingcheck.jsonl is missing")


# Demonstrations: every figure is known from the drawn data


@pytest.fixture(scope="module")
def demonstrated(tmp_path_factory):
    """Runs a demonstration once; returns its folder and figures."""
    ran = {}

    def demonstrate(name):
        if name not in ran:
            out = tmp_path_factory.mktemp(name) / "study"
            with pytest.MonkeyPatch.context() as patched:
                patched.setenv("MEMECOURT_HOME", str(out.parent / "home"))
                ran[name] = out, json.loads(run(name, "--demo", "--out", out, "--yes", "--json").stdout)
        return ran[name]

    return demonstrate


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PAPERS.keys() - {"memecourt"}))
def test_demonstration_comes_to_the_planted_figures_and_its_claims_hold(name, demonstrated):
    out, found = demonstrated(name)
    assert found["finished"] and not found["left"]
    cells = [cell for cells in found["tables"].values() for cell in cells]
    planted = [cell for cell in cells if cell["published"] is not None and cell["ours"]]
    assert planted and {cell["reached"] for cell in planted} == {"within interval"}
    # Ratings are estimated from battles; everything else follows from the data to the last digit.
    assert name in ("memearena", "probench") or all(abs(cell["difference"]) < 1e-9 for cell in planted)
    assert {claim["verdict"] for claim in found["claims"]} <= {"holds", "not tested"}
    assert "holds" in {claim["verdict"] for claim in found["claims"]}
    page, text = ((out / f"reproduction.{ending}").read_text() for ending in ("html", "md"))
    for one in read_paper(name).tables:
        assert f"{one.id}: {one.title}" in text and one.title.replace("'", "&#39;") in page
    assert "must be" in page and "What differs from the paper" in page
    assert run(name, "--demo", "--out", out, "--yes", code=2)
    # Finished stages are not run again, whatever address the servers have this time.
    again = run(name, "--demo", "--out", out, "--yes", "--json", "--resume")
    assert json.loads(again.stdout) == found and "Stage 1" not in again.stderr


@pytest.mark.slow
def test_figures_of_emulate_are_those_of_its_stored_checks(demonstrated):
    from sklearn.metrics import f1_score, recall_score

    out, found = demonstrated("emulate")
    checked = WitnessFolder(out / "stages/bingcheck-run").checked()
    label = {True: "True", False: "False", None: "none"}
    pairs = {
        arm: [(str(one.gold), label[one.answer]) for one in checked if one.arm == arm] for arm in ("witness", "no-rank")
    }
    cells = {
        (cell["row"], cell["figure"]): cell["ours"]["value"]
        for cells in found["tables"].values()
        for cell in cells
        if cell["ours"]
    }
    for row, arm in (("the witness, drawn claims", "witness"), ("without SearchRank", "no-rank")):
        weighted = f1_score(*zip(*pairs[arm], strict=True), labels=["False", "True"], average="weighted")
        assert cells[row, "weighted F1"] == pytest.approx(weighted)
    (recall,) = recall_score(*zip(*pairs["witness"], strict=True), labels=["True"], average=None)
    assert cells["the witness, drawn claims", "recall of True"] == pytest.approx(recall)


def battles_won(out, models):
    """Wins between models in the arena of a demonstration, ties half; shape (models, models)."""
    won = np.zeros((len(models), len(models)))
    for event in ArenaFolder(out / "stages/arena-run").events():
        if isinstance(event, Judged) and event.study == "arena":
            a, b, score = models.index(event.a), models.index(event.b), event.verdicts["overall"].score
            won[a, b] += score
            won[b, a] += 1 - score
    return won


@pytest.mark.slow
def test_figures_of_memearena_are_those_of_its_battles(demonstrated):
    from scipy.optimize import minimize

    out, found = demonstrated("memearena")
    models = ["ash", "beech", "cedar", "elm", "fir"]
    won = battles_won(out, models)

    def loss(theta):
        return (won * np.logaddexp(0, theta[None, :] - theta[:, None])).sum()

    theta = minimize(loss, np.zeros(len(models)), tol=1e-10).x
    cells = {(cell["row"], cell["figure"]): cell["ours"]["value"] for cell in found["tables"]["Table 1"]}
    for place, name in enumerate(models):
        assert cells[name, "rating"] == pytest.approx(1000 + 400 / np.log(10) * (theta - theta.mean())[place], abs=0.1)
        assert cells[name, "win rate"] == pytest.approx(won[place].sum() / (won[place] + won[:, place]).sum())


@pytest.mark.slow
def test_ratings_of_probench_are_the_logits_of_its_win_rates(demonstrated):
    out, found = demonstrated("probench")
    models = ["ash", "beech", "elm", "fir", "cedar"]
    won = battles_won(out, models)
    cells = {(cell["row"], cell["figure"]): cell["ours"]["value"] for cell in found["tables"]["Table 1"]}
    # Everybody meets the baseline alone, in both orders.
    for place, name in enumerate(models[:-1]):
        rate = won[place, -1] / (won[place, -1] + won[-1, place])
        assert cells[name, "win rate"] == pytest.approx(rate)
        assert cells[name, "rating"] == pytest.approx(1114 + 400 * np.log10(rate / (1 - rate)), abs=0.1)


@pytest.mark.slow
def test_figures_of_adammeme_are_those_of_its_scores(demonstrated):
    out, found = demonstrated("adammeme")
    folder = ProbeFolder(out / "stages/llava-v1-6-7b-run")
    before = {}
    for one in folder.read(SCORED, Scored):
        before.setdefault(one.category, []).append(one.scoring.score)
    after = [step for step in folder.read(REWRITTEN, Step) if step.category == "religion"]
    weak = [*before["religion"], *(step.scoring.score for step in after)]
    cells = {
        (cell["row"], cell["figure"]): cell["ours"]["value"]
        for name in ("Tables 1 and 2", "Categories")
        for cell in found["tables"][name]
        if cell["ours"]
    }
    assert cells["weak", "score"] == pytest.approx(np.mean([np.mean(scores) for scores in before.values()]))
    assert cells["religion", "failure rate, together"] == pytest.approx(np.mean(np.array(weak) <= 4))
    # Examples are shown in descending order of score.
    scores = {one.meme: one.scoring.score for one in folder.read(SCORED, Scored) if one.category == "religion"}
    shown = [[scores[name] for name in step.examples if name in scores] for step in after]
    assert any(len(set(line)) > 1 for line in shown) and all(line == sorted(line, reverse=True) for line in shown)


@pytest.mark.slow
def test_figures_of_climatememes_are_those_of_its_predictions(demonstrated):
    from sklearn.metrics import f1_score

    from eval.runs.results import read_results

    out, found = demonstrated("climatememes")
    judged = read_results(out / "stages/stance-llava-run/picture+text,4-shot").judged
    gold = [one.meme.tasks["target"][0] for one in judged]
    answer = [one.prediction.said["target"].labels[0] for one in judged]
    cells = {(cell["row"], cell["figure"]): cell["ours"]["value"] for cell in found["tables"]["Table 2, stance"]}
    labels = sorted({*gold, *answer})
    assert cells["picture and text", "accuracy"] == pytest.approx(np.mean(np.array(gold) == np.array(answer)))
    assert cells["picture and text", "macro-F1"] == pytest.approx(
        f1_score(gold, answer, average="macro", labels=labels)
    )
