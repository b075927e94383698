"""The probe on the fake model server, over HTTP: portable schemas, scores, searches, usage."""

from eval.models.metered import ModelSpec
from eval.models.open import opened_models
from eval.probe.agents import BEGIN, parse_rating, parse_sorting, sorting_schema
from eval.probe.folder import REWRITTEN, SCORED, Scored, ScoringOutcome, Step, StepOutcome
from eval.probe.report import read_report
from eval.probe.run import probe
from eval.standin.replies import ReplyMaker, tokens_of
from eval.standin.server import FakeModelServer, serving
from eval.standin.settings import Settings
from tests.support.fakes import FakeReader
from tests.support.probing import a_plan, write_data_set


def keys_of(schema):
    for key, value in schema.items():
        yield key
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, dict):
                yield from keys_of(part)


async def test_probe_runs_on_the_fake_model_server(tmp_path):
    data = write_data_set(tmp_path / "data", [("blueland drinks tea", True), ("blueland is late", True)])
    plan = a_plan(tmp_path / "probe", data)
    plan.out.mkdir()
    server = FakeModelServer(Settings(values={"keeps": True}), keep=True)
    async with serving(server) as port:
        specs = {
            name: ModelSpec(url=(f"http://127.0.0.1:{port}/v1",), model=server.settings.model)
            for name in ("target", "c0")
        }
        async with opened_models(specs, plan.out / "calls.sqlite", lambda _: None, pictures=6) as opened:
            folder = await probe(plan, opened, FakeReader())
    scored, steps = folder.read(SCORED, Scored), folder.read(REWRITTEN, Step)
    assert len(scored) == 2 and {one.scoring.outcome for one in scored} == {ScoringOutcome.SCORED}
    assert steps and {step.outcome for step in steps} <= {StepOutcome.LOWER, StepOutcome.NOT_LOWER}
    assert folder.manifest().finished and read_report(folder.root).rows[-1].before.mean is not None
    sent = [
        (request.get("response_format") or {}).get("json_schema", {}).get("schema", {}) for request in server.requests
    ]
    assert sum(map(bool, sent)) > 10 and "pattern" not in {key for schema in sent for key in keys_of(schema)}


def test_fake_model_server_gives_brief_names_and_ratings():
    taxonomy = {category.name: category for category in BEGIN}
    for seed in range(30):
        maker = ReplyMaker(seed=seed)
        sorting = parse_sorting(maker.instance(tokens_of("Sort this."), sorting_schema(taxonomy)), taxonomy)
        assert sorting.categories == ("race",) and sorting.new is not None
        assert 1 <= parse_rating(maker.text(tokens_of("Like this: Rating: [[7]]."))) <= 10
    assert "Rating" not in ReplyMaker().text(tokens_of("A rating is wanted."))
