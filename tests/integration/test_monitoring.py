"""Telemetry of the real server as a subprocess: metrics over HTTP, spans at a collector, lines in the log."""

import io
import json
import urllib.request

from PIL import Image, PngImagePlugin
from prometheus_client.parser import text_string_to_metric_families

from eval.synthetic.scenes import draw_meme
from memecourt.client import Client, judge_request
from tests.support.server import records
from tests.support.telemetry import attributes_of, running_collector

WORDS = "Zebras from Redland are late for their coffee on Monday"


def marked():
    """A picture with a caption to read, and with metadata that must not be reported."""
    file, info = io.BytesIO(), PngImagePlugin.PngInfo()
    info.add_text("Comment", "zebrametadata")
    exif = Image.Exif()
    exif[0x010E] = "zebrametadata"
    draw_meme("cat", WORDS, seed=3).save(file, "PNG", pnginfo=info, exif=exif)
    return file.getvalue()


def test_metrics_spans_and_log_report_a_trial_without_its_contents(start, monkeypatch):
    with running_collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        server = start(None, "--metrics", "127.0.0.1:0", "--traces", "--log-format", "json").ready()
        listening = json.loads(server.wait_for(lambda line: "metrics are served" in line))
        content = {"namespace": "zebranamespace", "content_id": "zebracontent"}
        with Client(server.address) as court:
            verdict = court.ask(judge_request(marked(), request_id="r-0", **content), timeout=120)
            again = court.ask(judge_request(marked(), request_id="r-1", **content), timeout=120)
        assert again.reused_from.verdict_id == verdict.verdict_id
        with urllib.request.urlopen(f"http://127.0.0.1:{listening['port']}/metrics", timeout=60) as answer:
            page = answer.read().decode()
        assert server.end() == 0

    (record,) = records(server.docket, verdict.verdict_id)
    assert "zebras" in record.text.text.lower()  # the caption was read
    values = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    # The figures of a server are compared with its docket in tests/contract/test_telemetry.py.
    assert values["memecourt_reused_verdicts_total", (("kind", "exact"),)] == 1
    for service in ("Court", "Docket", "Precedents"):
        assert values["memecourt_serving", (("service", f"memecourt.v1.{service}"),)] == 1

    # Pending spans are exported when the server stops.
    (trial,) = collector.named("invoke_workflow memecourt.summary")
    assert trial.trace_id.hex() == record.opened.trace_id == verdict.trace_id
    assert attributes_of(trial)["memecourt.trial.id"] == record.trial_id
    below = {span.name for span in collector.spans if span.parent_span_id == trial.span_id}
    assert below == {"read text", f"retrieval {record.precedents.findings.library.name}"}

    lines = [json.loads(line) for line in server.log if line.startswith("{")]
    of_trial = [line for line in lines if line["logger"] == "memecourt.trials"]
    assert [line["event"] for line in of_trial] == [event.kind for event in record.events]
    assert {(line["trial"], line["request"]) for line in of_trial} == {(record.trial_id, "r-0")}
    exported = "".join(str(request) for request in collector.requests)
    for output in (page, exported, "\n".join(server.log)):
        assert "zebra" not in output.lower() and record.opened.meme.pixels_sha256 not in output
