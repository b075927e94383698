"""``memecourt-eval probe``: an adaptive search for what a model does not understand about harmful memes."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eval.commands.options import vllm_turns_options
from serving.access.private_files import hand_on

if TYPE_CHECKING:
    from eval.probe.report import ProbeReport
    from eval.probe.run import ProbePlan
    from eval.runs.progress import Progress

PAGE = "weakness.html"


@click.command()
@click.option("--target", metavar="NAME", help="Who is probed: a model of the file of models.")
@click.option(
    "--controller",
    "controllers",
    multiple=True,
    metavar="NAME",
    help="Who probes: sorts memes, writes references, scores, rewrites. May be given again, the senior one first: "
    "three of different makers vote better than one.",
)
@click.option(
    "--models",
    type=click.Path(path_type=Path),
    default=Path("models.toml"),
    show_default=True,
    help="The file of models (TOML): where their servers are, what they cost, what they may be asked.",
)
@vllm_turns_options
@click.option("--data", type=click.Path(path_type=Path), help="The directory that the data set was unpacked in.")
@click.option("--dataset", metavar="ID", help="Which data set that is. [default: the one that is recognised there]")
@click.option("--split", help="[default: the first one that is for testing]")
@click.option("--out", type=click.Path(path_type=Path), help="The probe's folder. [default: probe-TARGET]")
@click.option(
    "--calls",
    type=click.Path(path_type=Path),
    help="A store of model calls that probes share: how memes are sorted, and what the references are, is then asked "
    "once for all targets. [default: the probe's own]",
)
@click.option("--limit", type=click.IntRange(min=1), help="So many memes at most, drawn by label.")
@click.option(
    "--seed",
    default=0,
    show_default=True,
    type=click.IntRange(0),
    help="Of that sample, of where searches begin, and of replies.",
)
@click.option("--steps", type=click.IntRange(1, 100), default=10, show_default=True, help="Of a search, at most (N).")
@click.option("--seeds", type=click.IntRange(0, 1000), default=5, show_default=True, help="Searches in a category.")
@click.option("--batch", type=click.IntRange(min=1), default=8, show_default=True, help="Memes sorted alike; see docs.")
@click.option("--concurrency", type=click.IntRange(1, 1000), default=8, show_default=True, help="Memes at once.")
@click.option(
    "--threshold",
    type=click.IntRange(0, 10),
    default=4,
    show_default=True,
    help="Up to which score an explanation has failed. The paper says below 4; its figures come out with 4.",
)
@click.option("--report", "only_report", is_flag=True, help="Ask nobody: report on what is there in --out.")
@click.option("--json", "as_json", is_flag=True, help="The figures as one JSON object, without any text of a meme.")
def probe(**given: Any) -> None:
    """Finds out which harmful memes a model does not understand, and looks for more by rewriting them.

    Memes of a data set are sorted into kinds of harm. The target explains each; the controllers score that against a
    reference of theirs, 1 to 10. Then they rewrite texts, step by step, into what the target explains worse. The folder
    holds every step, and a page (weakness.html) what was found.

    Rewritten texts are harder to recognise by design. They stay in that folder, each is marked, and no library of
    precedents takes them in.

    Called again in the same way, it goes on where it was: no model is asked again for what it has said.

    Exit code: 0 if the probe has come to its end, 1 if it could not go on, 130 if it was interrupted.
    """
    from court.errors import CourtError
    from eval.probe.report import read_report

    try:
        if given["only_report"]:
            out = given["out"] or _folder_of(given)
        else:
            plan = _planned(given)
            out = plan.out
            _hold(plan, given)
        report = read_report(out, threshold=given["threshold"])
        page = _page(report, out)
    except CourtError as error:
        raise click.ClickException(error.message) from None
    if given["as_json"]:
        click.echo(json.dumps(figures_of(report)))
        return
    from eval.probe.terminal import in_words

    click.echo(in_words(report))
    click.echo(f"{page} shows it, rewritten texts included. Keep it to yourself.")


def figures_of(report: ProbeReport) -> dict[str, Any]:
    """The figures alone: texts stay in the probe's folder, also where somebody pipes its report."""
    from dataclasses import asdict

    told = asdict(report)
    for name in ("manifest", "memes", "failures", "topics", "usage"):
        del told[name]
    return {
        "target": report.manifest.target,
        "controllers": report.manifest.controllers,
        "dataset": report.manifest.dataset,
        "split": report.manifest.split,
        "finished": report.manifest.finished is not None,
        **told,
        "memes": len(report.memes),
        "failures": len(report.failures),
        "topics": [{"words": one.words, "n": one.n, "failed": one.failed, "mean": one.mean} for one in report.topics],
        "usage": [one.model_dump() for one in report.usage],
    }


def _hold(plan: ProbePlan, given: dict[str, Any]) -> None:
    from court.backends.ocr.reader import rapidocr_reader
    from court.meme import LIMITS
    from eval.models.call_cache import SqliteCallCache
    from eval.models.open import open_chairs, read_models, require_servers
    from eval.probe.folder import ProbeFolder
    from eval.probe.run import NOTICE, refuse_place
    from eval.probe.run import probe as hold
    from eval.runs.folder import CALLS
    from eval.runs.progress import watching
    from serving.cli.common import Interrupted
    from serving.cli.common import run as asyncio_run

    names = dict.fromkeys((plan.target, *plan.controllers))
    models: Path = given["models"]
    specs = read_models(models).models
    if unknown := [name for name in names if name not in specs]:
        raise click.UsageError(f"{models.name} has no model {', '.join(unknown)}. It has: {', '.join(specs)}.")

    chosen = {name: specs[name] for name in names}
    require_servers(chosen, given["vllm"])  # what is wrong is said before anything is read

    def say(line: str) -> None:
        click.echo(line, err=True)

    say(NOTICE)
    refuse_place(plan.out)
    if ProbeFolder(plan.out).begun:
        say(f"{plan.out} holds a probe: it is gone on with.")

    async def go(progress: Progress) -> None:
        from contextlib import AsyncExitStack

        async with AsyncExitStack() as stack:
            store = SqliteCallCache.open(given["calls"] or plan.out / CALLS)
            stack.push_async_callback(store.close)
            reader = rapidocr_reader()
            stack.push_async_callback(reader.aclose)
            most = plan.limits.examples + LIMITS.representative_frames
            chairs = await open_chairs(
                chosen,
                store,
                stack,
                progress.tell,
                pictures=most,
                run_seed=plan.seed,
                vllm=given["vllm"],
                vllm_flags=given["vllm_flags"],
            )
            await hold(plan, chairs, reader, progress)

    interrupted = 0
    with watching(say) as progress:
        try:
            asyncio_run(go(progress))
        except Interrupted as error:
            interrupted = error.exit_code
    if interrupted:
        say("Interrupted. What was asked is kept; the same command goes on.")
        sys.exit(interrupted)


def _planned(given: dict[str, Any]) -> ProbePlan:
    from eval.commands.options import dataset_of
    from eval.datasets.known import SplitRole
    from eval.datasets.places import recognised
    from eval.probe.refining import Limits
    from eval.probe.run import ProbePlan

    for name, option in (("target", "--target"), ("controllers", "--controller"), ("data", "--data")):
        if not given[name]:
            raise click.UsageError(f"Missing option {option}.")
    if given["dataset"]:
        dataset = dataset_of(given["dataset"])
    else:
        found = recognised(given["data"])
        if len(found) > 1:
            raise click.UsageError(f"There are {', '.join(one.id for one in found)} there: name one with --dataset.")
        (dataset,) = found
    return ProbePlan(
        out=given["out"] or _folder_of(given),
        dataset=dataset,
        data=given["data"],
        split=given["split"] or dataset.of_role(SplitRole.TEST)[0].name,
        target=given["target"],
        controllers=tuple(dict.fromkeys(given["controllers"])),
        limit=given["limit"],
        seed=given["seed"],
        limits=Limits(steps=given["steps"], seeds=given["seeds"]),
        batch=given["batch"],
        concurrency=given["concurrency"],
        command=shlex.join(["memecourt-eval", *sys.argv[1:]]),
    )


def _folder_of(given: dict[str, Any]) -> Path:
    if not given["target"]:
        raise click.UsageError("Name the folder with --out, or the model with --target.")
    return Path("probe-" + "".join(c if c.isalnum() or c in "._-" else "-" for c in given["target"]))


def _page(report: ProbeReport, out: Path) -> Path:
    from eval.probe.page import as_html

    page = out / PAGE
    page.write_text(as_html(report, out), encoding="utf-8")
    hand_on(page)
    return page
