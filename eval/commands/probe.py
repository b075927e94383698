"""``memecourt-eval probe``: an adaptive search for what a model does not understand about harmful memes."""

from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from court.backends.ocr.reader import rapidocr_reader
from court.meme import LIMITS
from eval.commands.options import Shown, command_line, run_watched, say, shows_sections, take_published, write_answer
from eval.commands.rating import rate_probe
from eval.commands.sampled import chosen_models, sampled_options, samples_of, threshold_option
from eval.models.open import opened_models, read_models
from eval.models.samples import TABLE_KEYS
from eval.probe.compare import compare_probes
from eval.probe.folder import ProbeFolder, ProbeSpec, read_seeds
from eval.probe.report import ProbeReport, read_report, repeated_probe
from eval.probe.run import NOTICE, ProbePlan
from eval.probe.run import probe as run_probe
from eval.session.directory import CALLS
from eval.session.engine import Progress
from eval.session.sampled import repeats_in, repeats_of
from eval.session.spec import flags_of, spec_options
from serving.cli.common import PATH

PAGE = "weakness.html"
AS_PUBLISHED = {"seeds": 10, "steps": 10, "batch": 1, "per_category": 200}


@click.group(invoke_without_command=True)
@click.option("--target", metavar="NAME", help="Model to probe, by its name in the file of models.")
@click.option(
    "--controller",
    "controllers",
    multiple=True,
    metavar="NAME",
    help="Model that sorts memes, writes references, scores and rewrites. May be repeated, the senior one first: three "
    "of different makers vote better than one.",
)
@sampled_options(
    "models.toml",
    "probe",
    about="File of models (TOML): addresses of their servers, prices and budgets.",
    out={"help": "The probe's folder. [default: probe-TARGET]"},
    concurrency={"default": 8},
)
@spec_options(ProbeSpec, with_defaults=True)
@threshold_option
@click.option(
    "--seeds-from",
    type=PATH,
    metavar="PROBE",
    help="Begin searches with the memes of another probe, to compare targets.",
)
@click.option(
    "--as-published",
    is_flag=True,
    help="Values of AdamMeme: ten seeds and ten steps, memes sorted one by one, 200 memes a category. Options that you "
    "name take precedence.",
)
@shows_sections(page=False)
@click.pass_context
def probe(context: click.Context, /, **options: Any) -> Shown | None:
    """Finds harmful memes that a model does not understand, and searches for more by rewriting them.

    Memes of a data set are sorted into kinds of harm. The target explains each; the controllers score that against a
    reference of theirs, 1 to 10. Then they rewrite texts, step by step, into what the target explains worse. The folder
    holds every step, and a page (weakness.html) with the findings.

    Rewritten texts are harder to recognise by design. They stay in that folder, each is marked, and no library of
    precedents takes them in.

    The same command continues an interrupted probe, and repeats no stored call.

    Exit code: 0 if the probe is complete, 1 if it could not continue, 130 if it was interrupted.
    """
    if context.invoked_subcommand is not None:
        return None

    take_published(context, options, AS_PUBLISHED)
    if options["only_report"]:
        out = options["out"] or _folder_of(options)
    else:
        plan = _planned(options)
        out = plan.out
        if options["repeats"] == 1:
            _run(plan, options)
        else:
            for one in repeats_of(plan, options["repeats"], "a probe"):
                # One store for all repeats: calls that they have in common are made once.
                _run(one, options | {"calls": options["calls"] or out / CALLS})
    # By what lies there and not by --repeats, which nobody gives with --report.
    folders = repeats_in(out)
    reports = [read_report(folder, threshold=options["threshold"]) for folder in folders or (out,)]
    if not folders:
        return _answer(reports[0], out)
    for report, folder in zip(reports, folders, strict=True):
        write_answer(_answer(report, folder), folder / PAGE)
    repeated, section = repeated_probe(reports)
    return Shown(
        title=f"{reports[0].title} over repeats",
        lead=repeated.lead,
        sections=[section],
        figures={**asdict(repeated), "repeats": [report.figures for report in reports]},
        page=out / PAGE,
        end=[f"{out / PAGE} shows it, and {PAGE} in each repeat's folder the repeat, with rewritten texts."],
    )


@probe.command()
@click.argument("probes", nargs=-1, required=True, metavar="DIR...", type=PATH)
@threshold_option
@shows_sections()
def compare(probes: tuple[Path, ...], threshold: int) -> Shown:
    """Compares probed targets, one folder each: scores and failure rates by category.

    The targets must have been probed with the same memes, references and seeds; any difference is named.
    """
    lead, sections, figures = compare_probes(probes, threshold=threshold)
    return Shown(title="Targets compared", lead=lead, sections=sections, figures=figures)


probe.add_command(rate_probe)


def _run(plan: ProbePlan, options: dict[str, Any]) -> None:
    chosen = chosen_models(options, (plan.target, *plan.controllers))
    say(NOTICE)
    # Before the store of calls is opened, which would leave its files in somebody else's folder.
    folder = ProbeFolder(plan.out)
    folder.require_own()
    if folder.begun:
        say(f"{plan.out} holds a probe, which is continued.")

    async def go(progress: Progress) -> None:
        # The longest prompt is the Refiner's: a still of each example, and all frames of the meme.
        pictures, calls = plan.spec.examples + LIMITS.representative_frames, options["calls"] or plan.out / CALLS
        how = {"pictures": pictures, "run_seed": plan.seed, **{name: options[name] for name in ("vllm", "vllm_flags")}}
        opening = opened_models(chosen, calls, progress.tell, **how)
        async with opening as opened, aclosing(rapidocr_reader()) as reader:
            await run_probe(plan, opened, reader, progress)

    run_watched(go)


def _planned(options: dict[str, Any]) -> ProbePlan:
    for name, option in (("target", "--target"), ("controllers", "--controller")):
        if not options[name]:
            raise click.UsageError(f"Missing option {option}.")
    table = read_models(options["models"]).rest.get("probe", {})
    if unknown := [name for name in table if name not in TABLE_KEYS]:
        raise click.UsageError(f"[probe] in {options['models'].name} has no setting {', '.join(unknown)}.")
    return ProbePlan(
        out=options["out"] or _folder_of(options),
        samples=samples_of(options, table, "[probe] in the file of models"),
        target=options["target"],
        # To be named twice gives nobody a second voice.
        controllers=tuple(dict.fromkeys(options["controllers"])),
        seed=options["seed"],
        spec=ProbeSpec(**{name: options[name] for name in flags_of(ProbeSpec)}),
        concurrency=options["concurrency"],
        seed_set=read_seeds(options["seeds_from"]) if options["seeds_from"] else None,
        command=command_line(),
    )


def _folder_of(options: dict[str, Any]) -> Path:
    if not options["target"]:
        raise click.UsageError("Name the folder with --out, or the model with --target.")
    # A name may have a slash, which must not make it another folder.
    return Path("probe-" + "".join(c if c.isalnum() or c in "._-" else "-" for c in options["target"]))


def _answer(report: ProbeReport, out: Path) -> Shown:
    return Shown(
        title=report.title,
        lead=report.lead,
        sections=report.sections,
        figures=report.figures,
        page=out / PAGE,
        command=report.manifest.command,
        end=[f"{out / PAGE} shows it, rewritten texts included. Keep it to yourself."],
    )
