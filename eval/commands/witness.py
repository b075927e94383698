"""``memecourt-eval witness``: how well the expert witness tells true claims from false ones."""

import random
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import click

from eval.commands.options import Shown, command_line, run_watched, shows_sections, take_published
from eval.commands.sampled import chosen_models, vllm_turns_options
from eval.datasets.claims import read_claims
from eval.models.call_cache import SqliteCallCache
from eval.models.open import opened_models
from eval.runs.spec import Circumstances, JudgingSpec
from eval.session.directory import CALLS
from eval.session.engine import Progress
from eval.session.spec import flags_of, spec_options
from eval.solvers.witness import Arm
from eval.witness.run import WitnessFolder, WitnessManifest, WitnessPlan, WitnessSpec, run_witness
from eval.witness.scores import score_arms, witness_lead, witness_sections
from eval.witness.world import draw_world, open_drawn
from serving.cli.common import PATH, settings_of
from serving.wiring import open_evidence

AS_PUBLISHED = {"steps": "apart", "temperature": 1.0, "queries": 4, "results": 2}
PAGE = "witness.html"


@click.command()
@click.option("--claims", type=PATH, help="Claims with known truth (JSON lines; see docs/witness.md).")
@click.option("--corpus", type=PATH, help="Corpus to check the claims with (`memecourt facts build`).")
@click.option(
    "--search-url",
    metavar="URL",
    help="Search endpoint to use instead of a corpus; its shape and key, and fetching pages, are settings (expert).",
)
@click.option("--model", "name", metavar="NAME", help="Model that checks claims, from the models file.")
@click.option(
    "--models", type=PATH, default=Path("models.toml"), show_default=True, help="Models file (TOML), as for the arena."
)
@vllm_turns_options
@click.option(
    "--citations-by",
    metavar="NAME",
    help="Model that checks whether a cited passage supports a finding, or none. [default: the same model]",
)
@click.option("--drawn", is_flag=True, help="Use the drawn world and a stand-in; needs no claims, corpus or model.")
@click.option("--out", type=PATH, required=True, metavar="DIR", help="Folder of the evaluation.")
@click.option(
    "--arm",
    "arms",
    multiple=True,
    type=click.Choice([*map(str, Arm), "all"]),
    help="Arm to evaluate. Repeatable. [default: witness]",
)
@spec_options(WitnessSpec, with_defaults=True)
@click.option(
    "--as-published",
    is_flag=True,
    help=(
        "Use EMULATE's settings: separate questions, temperature 1, four queries with two results, and a "
        "forced true or false where evidence is insufficient. Other options override them."
    ),
)
@spec_options(JudgingSpec, "limit", limit={"help": "Check a random sample of this size."})
@spec_options(Circumstances, "concurrency", concurrency={"default": 8, "help": "Maximum concurrent claims."})
@shows_sections(page=False)
@click.pass_context
def witness(context: click.Context, /, **options: Any) -> Shown:
    """Measures the expert witness on claims with known truth: accuracy, abstention, and support by its citations.

    The witness is that of a trial, given each claim by itself. Arms leave out one of its steps, or check claims in a
    simpler way. The folder holds a line per check and a page (witness.html).

    Running the command again continues, and repeats no model call.
    """
    take_published(context, options, AS_PUBLISHED)
    _refuse_contradictions(options)
    plan = _planned(options)
    manifest = run_watched(lambda progress: _run(plan, options, progress))
    cards = score_arms(WitnessFolder(plan.out).checked(), seed=plan.seed)
    figures = {"manifest": manifest.model_dump(mode="json"), "arms": [card.as_json for card in cards]}
    return Shown(
        title="The expert witness",
        lead=witness_lead(manifest, cards),
        sections=witness_sections(manifest, cards),
        figures=figures,
        page=plan.out / PAGE,
        command=manifest.command,
    )


def _refuse_contradictions(options: dict[str, Any]) -> None:
    if "fire" in options["arms"] and not {"all", "witness"} & set(options["arms"]):
        raise click.UsageError("--arm fire makes as many calls as the witness: add --arm witness.")
    names = ("claims", "corpus", "search_url", "citations_by")
    flags = {name: f"--{name.replace('_', '-')}" for name in names} | {"name": "--model"}
    if options["drawn"]:
        if named := [flag for name, flag in flags.items() if options[name]]:
            raise click.UsageError(f"--drawn has claims, documents and a stand-in of its own: leave {named[0]} out.")
        return
    if missing := [flags[name] for name in ("claims", "name") if not options[name]]:
        raise click.UsageError(f"Missing option {missing[0]}.")
    closed = set(options["arms"]) == {"closed-book"}
    sources = bool(options["corpus"]) + bool(options["search_url"])
    if sources > 1 or (not sources and not closed):
        raise click.UsageError("Name a source of evidence: --corpus or --search-url.")


def _planned(options: dict[str, Any]) -> WitnessPlan:
    claims = (
        tuple(fact.gold for fact in draw_world(options["seed"])) if options["drawn"] else read_claims(options["claims"])
    )
    if options["limit"] and options["limit"] < len(claims):
        # Places are drawn and sorted, so that a sample stands in the order of its file.
        indices = sorted(random.Random(options["seed"]).sample(range(len(claims)), options["limit"]))
        claims = tuple(claims[index] for index in indices)
    wanted = set(Arm) if "all" in options["arms"] else set(options["arms"] or ("witness",))
    return WitnessPlan(
        out=options["out"],
        claims=claims,
        arms=tuple(arm for arm in Arm if arm in wanted),
        forced=options["as_published"],
        concurrency=options["concurrency"],
        demonstration=options["drawn"],
        command=command_line(),
        **{name: options[name] for name in flags_of(WitnessSpec)},
    )


async def _run(plan: WitnessPlan, options: dict[str, Any], progress: Progress) -> WitnessManifest:
    # Before the store of calls is opened, which would leave its files in somebody else's folder.
    WitnessFolder(plan.out).require_own()
    async with AsyncExitStack() as stack:
        if options["drawn"]:
            store = SqliteCallCache(plan.out / CALLS)
            stack.push_async_callback(store.close)
            drawn, reader = open_drawn(stack, plan.seed)
            return await run_witness(
                plan, model=reader, source=drawn, store=store, citations_by=reader, progress=progress
            )
        citing = options["citations_by"] or options["name"]
        # The witness's own model may judge citations too: it is opened once.
        specs = chosen_models(options, [options["name"], *([] if citing == "none" else [citing])])
        # For closed-book alone: no corpus, whatever the settings name.
        named = {"url": options["search_url"]} if options["search_url"] else {"corpus": options["corpus"]}
        source = await open_evidence(settings_of(expert=named), stack)
        # The witness is shown texts alone.
        how = {"pictures": 0, "run_seed": plan.seed, "vllm": options["vllm"], "vllm_flags": options["vllm_flags"]}
        opened = await stack.enter_async_context(opened_models(specs, plan.out / CALLS, progress.tell, **how))
        return await run_witness(
            plan,
            model=opened[options["name"]].as_chat_model(),
            source=source,
            store=opened[options["name"]].store,
            citations_by=None if citing == "none" else opened[citing].as_chat_model(),
            progress=progress,
        )
