"""A small probe on a real vLLM: the calls, their figures, and resuming.

The model writes nonsense. The tests show that vLLM answers each agent's prompt in the requested format, and that
replies without a rating are not scored; not that a weakness is real.
"""

import json

import pytest
from click.testing import CliRunner

from court.backends.chat.client import ChatCompletions
from court.backends.chat.scripted import ScriptedModel
from court.backends.ocr.reader import rapidocr_reader
from court.ports import ChatReply, FinishReason
from eval.cli import cli
from eval.datasets.known import find_card
from eval.models.call_cache import SqliteCallCache
from eval.models.metered import MeteredModel, ModelSpec
from eval.models.samples import one_set
from eval.probe.folder import MARK, REWRITTEN, ProbeFolder, ProbeSpec, ScoringOutcome, Sorted, Step, StepOutcome
from eval.probe.report import read_report
from eval.probe.run import NOTICE, ProbePlan, probe
from retrieval.library.sources import NOT_FOR_LIBRARIES
from tests.support.probing import role_of, write_data_set

TEXTS = (
    ("blueland never pays for tea", True),
    ("they all wear round hats at work", True),
    ("a cat on a warm roof", False),
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data_set(tmp_path_factory.mktemp("data"), TEXTS)


def requests(vllm):
    """Returns the number of requests that vLLM has counted."""
    return vllm.metric("vllm:request_success_total")


def test_command_probes_a_real_model_and_repeats_no_call(vllm, data, tmp_path, monkeypatch):
    monkeypatch.setenv("TINY_KEY", vllm.api_key)
    models = tmp_path / "models.toml"
    models.write_text(
        f'[models.tiny]\nurl = "{vllm.base_url}"\nmodel = "{vllm.model}"\napi_key_env = "TINY_KEY"\n'
        "max_tokens = 48\nusd_in = 1.0\nusd_out = 2.0\n"
    )
    out = tmp_path / "probe"
    arguments = ["probe", "--target", "tiny", "--controller", "tiny", "--models", str(models), "--data", str(data)]
    arguments += ["--dataset", "fhm", "--split", "dev_seen", "--out", str(out), "--limit", "1", "--json"]
    requests_at_start = requests(vllm)
    first = CliRunner().invoke(cli, arguments)
    assert first.exit_code == 0, first.output
    assert first.stderr.startswith(NOTICE)
    output = json.loads(first.stdout)
    assert output["finished"] and output["memes"] == 1
    folder = ProbeFolder(out)
    assert all(meme.lines > 0 and meme.left == 0 for meme in folder.memes()), "the texts were removed from the pictures"
    (usage,) = folder.spent().values()
    assert usage.failed == 0 and usage.calls >= 3
    assert usage.usd == pytest.approx((usage.tokens_in + 2 * usage.tokens_out) / 1e6)
    # Free text of 48 tokens of nonsense is no rating.
    assert output["overall"]["before"]["scored"] == 0 and output["overall"]["before"]["mean"] is None
    assert (out / "weakness.html").exists()
    print(f"a probe of one meme: {output['mined']}, {usage.calls} calls, {usage.repaired} repeated")

    # The server is first probed for its capabilities; these are no calls of the probe itself.
    requests_at_end = requests(vllm)
    capability_calls = requests_at_end - requests_at_start - usage.calls
    assert 0 < capability_calls < 20
    second = CliRunner().invoke(cli, arguments)
    assert second.exit_code == 0, second.output
    assert [*folder.spent().values()] == [usage]
    assert requests(vllm) - requests_at_end == capability_calls
    figures = [json.loads(result.stdout) for result in (first, second)]
    for result in figures:
        del result["usage"]
    assert figures[0] == figures[1]


class PartlyScripted:
    """The real model, with a script for roles in which nonsense is useless: rating, and checking for the misbelief."""

    def __init__(self, model, script):
        self._model, self._script = model, ScriptedModel(script)
        self._roles = ("miner", "scorer", "keeps")
        self.real = []

    @property
    def name(self):
        return self._model.name

    async def reply(self, request, *, within_s):
        role = role_of(request)
        if role in self._roles:
            return await self._script.reply(request, within_s=within_s)
        reply = await self._model.reply(request, within_s=within_s)
        self.real.append((role, reply))
        return reply


async def test_real_model_rewrites_texts(vllm, data, tmp_path):
    ratings = iter(range(10, 0, -1))

    def script(request):
        match role_of(request):
            case "miner":
                return {"categories": ["religion"], "new_name": "", "new_definition": ""}
            case "scorer":
                return f"Rating: [[{next(ratings)}]]"
            case _:
                return {"reason": "the misbelief remains", "keeps": True}

    plan = ProbePlan(
        out=tmp_path / "probe",
        samples=one_set(find_card("fhm"), data, "dev_seen", limit=None),
        target="target",
        controllers=("controller",),
        spec=ProbeSpec(steps=2, seeds=1),
        concurrency=1,
    )
    plan.out.mkdir()
    store, reader = SqliteCallCache(plan.out / "calls.sqlite"), rapidocr_reader()
    model = ChatCompletions(base_url=vllm.base_url, model=vllm.model, api_key=vllm.api_key)
    partly = PartlyScripted(model, script)
    try:
        spec = ModelSpec(model=vllm.model, max_tokens=48)
        models = {name: MeteredModel(name, partly, store=store, spec=spec) for name in ("target", "controller")}
        await probe(plan, models, reader)
        real = partly.real
    finally:
        await store.close()
        await reader.aclose()
        await model.aclose()
    roles = {role for role, _ in real}
    assert roles == {"answerer", "narrator", "senior", "refiner"}
    for role, reply in real:
        assert isinstance(reply, ChatReply) and reply.tokens_out > 0
        if role != "answerer":  # the schema is enforced by vLLM
            assert reply.finish is FinishReason.STOP and isinstance(json.loads(reply.text), dict)
    folder = ProbeFolder(plan.out)
    report = read_report(plan.out)
    assert report.figures["mined"][Sorted.HARMFUL] == 3
    assert report.rows[-1].before.scored == 3 and report.rows[-1].before.mean.value == pytest.approx(9)
    # Each score is below the previous ones, so the search takes all its steps.
    steps = folder.read(REWRITTEN, Step)
    assert [(step.number, step.outcome) for step in steps] == [(1, StepOutcome.LOWER), (2, StepOutcome.LOWER)]
    assert [step.scoring.score for step in steps] == [7, 6]
    assert all(step.text and step.scoring.outcome is ScoringOutcome.SCORED for step in steps)
    assert (plan.out / REWRITTEN).read_text().count(f'"{NOT_FOR_LIBRARIES}": "{MARK}"') == 2
