"""``memecourt-eval classify``: asks a question of a data set's card of every meme of a split."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from court.errors import BadRequest
from court.events import Procedure
from court.question import read_question
from court.settings import TrialSettings
from eval.commands.options import Shown, court_options, dataset_of, plan_of, run_watched, shows_sections
from eval.datasets.card import DatasetCard
from eval.datasets.read import require_same_labels
from eval.models.vllm_session import VllmSessions
from eval.reports import tasks
from eval.runs.plan import Plan, parse_setting
from eval.runs.results import LIBRARY, RunFolder, read_results
from eval.runs.run import run
from eval.runs.spec import Circumstances, JudgingSpec
from eval.scores.metrics import require_metrics
from eval.session.directory import CALLS
from eval.session.engine import Progress
from eval.session.spec import spec_options
from eval.solvers.question import PRECEDENTS, Answerer, Question, parse_inputs, question_about
from serving.cli.common import NEW_FILE
from serving.models.connect import pictures_per_prompt


@click.command()
@spec_options(
    JudgingSpec,
    *("dataset", "split", "limit", "seed", "server"),
    dataset={"required": True},
    split={
        "help": "Split; template is the first test split without any labelled meme that shares a template with it. "
        "[default: the first test split]"
    },
)
@click.option("--task", help="Task of the card, such as stance. [default: the id of --question]")
@click.option(
    "--question",
    "question_file",
    type=NEW_FILE,
    metavar="FILE.toml",
    help="Question in words of your own (docs/classify.md); its options are the task's labels.",
)
@click.option(
    "--trial",
    is_flag=True,
    help="Try every meme on harm in a full trial, and put the question to its Judge after the verdict.",
)
@click.option(
    "--inputs",
    multiple=True,
    metavar="WORDS",
    help=(
        "Parts of a meme to show, separated by commas: picture, text, ocr, caption, language, description (the "
        "Proposer's), gold:TASK. Repeat the option for a grid. [default: picture,text; a trial has its own evidence]"
    ),
)
@click.option(
    "--shots",
    default="0",
    show_default=True,
    metavar="N,…",
    help="Number of nearest labelled memes of the train split to show as examples; several numbers make a grid.",
)
@click.option("--rotate", is_flag=True, help="Ask once for each rotation of the options.")
@click.option("--odds", is_flag=True, help="Ask the model for the probability of each label too.")
@spec_options(
    Circumstances,
    *("data", "out", "name", "concurrency", "calls", "allow_missing"),
    data={"required": True},
    out={"required": True, "help": "Folder of the run or of the grid."},
)
@court_options(
    model={
        "help": 'Model at --llm-url, or "precedents" for the vote of labelled memes without a model. [default: '
        "precedents, unless --llm-url or --vllm is given]"
    },
    encoder={"help": "Encoder of the labelled memes. [default: builtin]"},
    policy={"help": "With --trial: policy file (TOML)."},
)
@shows_sections()
def classify(**options: Any) -> Shown:
    """Asks a question of a data set's card of every meme: stance, target, frames, whatever it has labels for.

    One call of a model for each meme and order of the options, whose reply is bound to the card's labels; or, without
    any model, the calibrated vote of labelled memes of the train split; or, with --trial, the Judge of a full trial on
    harm, from the evidence of that trial. Examples and voters are never near copies of what is asked about. Called
    again, the same command goes on where it was.

    Several --inputs or numbers of --shots are runs side by side, each in a folder of its own below --out.

    Exit code: 0 if every meme has an answer or a failure of its own, 3 if some are still to be asked about, 1 if the
    run could not go on, 130 if it was interrupted.
    """

    async def run_all(progress: Progress) -> None:
        if len(plans) == 1:
            await run(plans[0], progress)
            return
        # One server for all runs of the grid: it has to take the longest prompt of any of them.
        pictures = max(pictures_per_prompt(plan.settings.trial) for plan in plans)
        async with VllmSessions(progress.tell, pictures=pictures, flags=options["vllm_flags"]) as sessions:
            for plan in plans:
                progress.tell(f"{plan.name} …")
                served = plan
                # Started where one of the runs has something left to ask.
                if plan.vllm is not None and not RunFolder(plan.out).finished:
                    llm = (await sessions.serve(plan.vllm.model)).in_all_roles(plan.settings.llm)
                    served = replace(plan, vllm=None, settings=plan.settings.model_copy(update={"llm": llm}))
                await run(served, progress)

    plans = _plans(options)
    run_watched(run_all)
    report = tasks.gather([read_results(plan.out) for plan in plans])
    question, out = plans[0].question, options["out"]
    assert question is not None, "every plan of this command asks one"
    return Shown(
        title=f"{question.task} on {plans[0].dataset.title}",
        lead=tasks.lead_of(report),
        sections=tasks.sections_of(report),
        figures=tasks.as_json(report),
        end=["", f"{out} holds it. memecourt-eval report {out} shows it again."],
    )


def _plans(options: dict[str, Any]) -> list[Plan]:
    """The plan of each run: one, or those of a grid. Raises BadRequest where something asked for there is none of."""
    dataset = dataset_of(options["dataset"])
    questions = _questions(options, dataset)
    plans: list[Plan] = []
    single = len(questions) == 1
    # One store and one library for all: what they have in common is asked and prepared once.
    calls = options["calls"] or (None if single else options["out"] / CALLS)
    library: Path | None = None
    for question in questions:
        out = options["out"]
        if not single:
            # What is shown, and with how many examples; no colon and no slash in the name of a folder.
            shown = "+".join(question.inputs).replace(":", "=").replace("/", "-")
            out /= f"{shown},{question.shots}-shot" if question.by == "model" else shown
        # A run of a grid is called by its place there.
        name = (options["name"] if single else "") or out.resolve().name
        own = {"out": out, "name": name, "calls": calls, "library": library if question.needs_examples else None}
        plans.append(_plan(options, dataset, question, own))
        if library is None and question.needs_examples:
            library = out / LIBRARY
    return plans


def _questions(options: dict[str, Any], dataset: DatasetCard) -> list[Question]:
    worded = read_question(options["question_file"]) if options["question_file"] else None
    if options["task"] is None and worded is None:
        raise click.UsageError("Missing option --task; or --question, whose id names the task.")
    task = dataset.task(options["task"] or worded.id if worded else options["task"])
    # Scored by the task's gold: with other options every answer would be wrong.
    if worded is not None:
        require_same_labels(worded, task)
    # Before anything is asked: a run whose card names no metric that there is could not be reported.
    require_metrics(task.id, task.labels, task.official, *task.metrics)
    model = options["model"] or (None if options["llm_url"] or options["vllm"] else PRECEDENTS)
    by = Answerer.PRECEDENTS if model == PRECEDENTS else Answerer.MODEL
    if options["trial"]:
        _require_trial(options, asks_none=by is Answerer.PRECEDENTS)
        by = Answerer.TRIAL
    elif options["policy"]:
        raise BadRequest("A policy is what trials go by: give --trial with --policy.", field="policy")
    elif worded is not None and worded.sides is not None:
        raise BadRequest(
            "Two sides are weighed by a trial's Judge: give --trial, or a question without sides.", field="question"
        )
    if by is Answerer.PRECEDENTS and (options["rotate"] or options["odds"] or options["llm_url"] or options["vllm"]):
        raise BadRequest(
            "The vote of labelled memes asks no model: leave --rotate, --odds, --llm-url and --vllm out, or name a "
            "model."
        )
    tasks = [one.id for one in dataset.all_tasks()]
    inputs = [parse_inputs(shown, tasks, task.id) for shown in options["inputs"] or ("picture,text",)]
    if by is Answerer.PRECEDENTS:
        for words in inputs:
            if other := [word for word in words if word not in ("picture", "text", "ocr", "caption")]:
                raise BadRequest(f"The vote of labelled memes can't compare {', '.join(other)}.", field="inputs")
    # What a file says of a question goes before what the card says.
    how: dict[str, Any] = {"rotate": options["rotate"], "odds": options["odds"], "by": by}
    if worded is not None:
        sides = (worded.sides.accuser, worded.sides.defender) if worded.sides else ()
        how |= {"title": worded.text, "define": worded.define, "sides": sides}
    questions = [
        question_about(task, inputs=words, shots=shots, **how)
        # Inputs that are named twice would be two runs in one folder.
        for words in dict.fromkeys(inputs)
        # A vote is shown no examples, and a trial has precedents.
        for shots in (_shots(options["shots"]) if by is Answerer.MODEL else (0,))
    ]
    if by is Answerer.TRIAL:
        questions[0].for_court()  # one that a court can't be asked is an error before anything is begun
    return questions


def _require_trial(options: dict[str, Any], *, asks_none: bool) -> None:
    """Refuses options that a trial has no use for. Raises BadRequest."""
    if asks_none:
        raise BadRequest("A full trial asks chat models: name one with --llm-url and --model, or --vllm.")
    # Refused and not passed over: a run would bear the name of an input that it never showed.
    others = [f"--{name}" for name in ("inputs", "rotate", "odds") if options[name]]
    if others or options["shots"] != "0":
        raise BadRequest(
            f"{', '.join(others or ['--shots'])} can't be given with --trial: its Judge has the evidence of the trial. "
            "--set alters that, such as --set exhibits=5."
        )


def _shots(text: str) -> tuple[int, ...]:
    """Numbers of examples. Raises click.UsageError where they are none."""
    try:
        # A number that is named twice would be two runs in one folder.
        found = tuple(dict.fromkeys(int(one) for one in text.split(",") if one.strip()))
    except ValueError:
        found = ()
    if not found or not all(0 <= one <= _MOST_SHOTS for one in found):
        raise click.UsageError(f"--shots {text}: give numbers from 0 to {_MOST_SHOTS}, parted by commas.")
    return found


_MOST_SHOTS = 16


def _plan(options: dict[str, Any], dataset: DatasetCard, question: Question, own: dict[str, Any]) -> Plan:
    trial = dict(parse_setting(one) for one in options["settings"])
    without = question.by is Answerer.TRIAL and dataset.court_task is None
    # Its labelled memes say nothing of harm: shown as precedents they would pass for harmless ones.
    if without and trial.setdefault("precedents", False) is not False:
        raise BadRequest(
            f"{dataset.title} says nothing of harm, so that there are no precedents for its trials: leave --set "
            "precedents out.",
            field="settings",
        )
    if question.shots > TrialSettings.model_fields["exhibits"].default:
        trial.setdefault("exhibits", question.shots)  # by which a vLLM is told how many pictures a prompt may have
    precedents = question.by is Answerer.PRECEDENTS
    return plan_of(
        options | {"model": None if precedents else options["model"]},
        trial=trial,
        dataset=dataset,
        procedure=Procedure.SUMMARY if precedents else Procedure.FULL,
        protocols=(),
        question=question,
        **own,
    )
