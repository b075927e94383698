"""Results without trials: gold labels and predicted outcomes, for tests of scores and comparisons."""

from datetime import UTC, datetime

from court.events import Procedure
from eval.datasets.items import JudgedMeme, Level, Outcome, Prediction, Protocol
from eval.runs.results import MEMES, PREDICTIONS, Judged, Results, RunFolder, RunManifest

H, N, U, F = Outcome.HARMFUL, Outcome.NOT_HARMFUL, Outcome.UNDECIDED, Outcome.FAILED


def meme(id_, gold):
    """Returns a meme; ``gold`` is one of three levels, or a bool with two classes."""
    level = gold if isinstance(gold, Level) else None
    harmful = gold is not Level.NOT_HARMFUL if level is not None else gold
    return JudgedMeme(
        id=str(id_), split="test", line=1, image="", text="", harmful=harmful, level=level, source_label=str(gold)
    )


def results(gold, predicted, *, name="ours", ids=None, protocols=(Protocol.PLAIN,), **fields):
    """Returns results of memes with the ids 0, 1, 2 … unless ids are given.

    Args:
        gold: Gold labels, levels or bools.
        predicted: Predicted outcomes.
        name: Name of the system.
        ids: Ids of the memes.
        protocols: Protocols under which the results are scored.
        fields: Further fields of the predictions, one sequence per field.
    """
    ids = [str(id_) for id_ in (ids if ids is not None else range(len(gold)))]
    rows = []
    for place, (id_, truth, outcome) in enumerate(zip(ids, gold, predicted, strict=True)):
        more = {field: values[place] for field, values in fields.items()}
        rows.append(Judged(meme(id_, truth), Prediction(meme=id_, outcome=outcome, **more)))
    return Results(name=name, dataset="invented", split="test", protocols=protocols, judged=tuple(rows))


def write_run(root, ours):
    """Writes results as a run without trials."""
    folder = RunFolder(root)
    folder.write(MEMES, [one.meme for one in ours.judged])
    folder.write(PREDICTIONS, [one.prediction for one in ours.judged])
    folder.write_manifest(
        RunManifest(
            name=ours.name,
            created=datetime(2026, 1, 2, tzinfo=UTC),
            finished=datetime(2026, 1, 2, tzinfo=UTC),
            dataset=ours.dataset,
            split=ours.split,
            data={},
            protocols=ours.protocols,
            procedure=Procedure.SUMMARY,
            settings={},
            settings_digest="",
            policy="",
            library="",
            library_size=0,
            encoder="",
            software="",
            python="",
            machine="",
            command="",
        )
    )
