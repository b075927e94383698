"""Judges the memes of a run that have no prediction yet."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from court.deadline import gather_or_cancel
from court.errors import Unavailable
from court.events import TrialFailed
from court.record import TrialRecord
from eval.datasets.items import JudgedMeme
from eval.models.call_cache import SqliteCallCache
from eval.runs.attempt import LATE, Attempt, Patience, may_pass
from eval.runs.comparators import Comparator, ComparatorAttempt
from eval.runs.controls import Control
from eval.runs.folder import CALLS, PREDICTIONS, RunFolder, RunManifest
from eval.runs.material import Material
from eval.runs.plan import Plan, court_settings
from eval.runs.prediction import Outcome, Prediction
from eval.runs.progress import Progress, RunningScore
from eval.runs.question_attempt import OpenQuestion
from eval.runs.translated import ENGLISH, TranslatedAttempt
from serving.runner.executor import TrialExecutor

if TYPE_CHECKING:
    from eval.runs.ray_cluster import Cluster


SERVER_GONE = "RUN_SERVER_GONE"
"""Reason of an error: so many consecutive memes failed for lack of a server that continuing is pointless."""
UNFINISHED = "RUN_UNFINISHED"
"""Reason of an error: all memes were tried, and some failed for reasons that may be temporary."""
_IN_A_ROW = 3  # consecutive failures per worker after which the server counts as gone


class Judging:
    """Judges the memes that have no prediction yet."""

    def __init__(
        self,
        plan: Plan,
        folder: RunFolder,
        material: Material,
        executor: TrialExecutor,
        calls: SqliteCallCache | None,
        progress: Progress,
        manifest: RunManifest,
        *,
        again: bool,
        cluster: Cluster | None = None,
        question: OpenQuestion | None = None,
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._material = material
        self._executor = executor
        self._progress = progress
        self._manifest = manifest
        self._again = again
        self._cluster = cluster
        of_run: dict[str, Any] = {
            "executor": executor,
            "calls": calls,
            "dataset": plan.dataset.id,
            "procedure": plan.procedure,
            "seed": plan.seed,
            "server": plan.server,
            "retry_failed": plan.retry_failed,
            "text_only": plan.text_only,
            "language": plan.language,
            "patience": Patience(plan.patience_s),
        }
        self._trier: Attempt
        if question is not None:
            self._trier = question.attempt(**of_run)
        elif plan.comparator:
            comparator = Comparator(plan.comparator)
            self._trier = ComparatorAttempt(**of_run, comparator=comparator, budgets=plan.budgets)
        elif plan.control == Control.TRANSLATED:
            # The trial gets the English translation, whatever the original language.
            of_run["language"] = ENGLISH if plan.language else ""
            self._trier = TranslatedAttempt(**of_run, source_language=plan.language)
        else:
            self._trier = Attempt(**of_run)
        self._left: Counter[str] = Counter()
        self._trials: Mapping[str, Sequence[str]] = {}
        self._tally = RunningScore(
            None if plan.question else plan.protocols[0],
            total=len(material.memes),
            task=plan.question.task if plan.question else "",
        )
        self._failures = 0  # consecutive, for possibly temporary reasons

    async def all(self) -> None:
        """Judges until every meme has a prediction. Raises like :func:`eval.runs.run.run`."""
        # Read before anything is judged, so that trials of this process do not count as interrupted.
        self._trials = await self._executor.docket.index.requests()
        predictions = await self._valid_predictions()
        todo = [meme for meme in self._material.memes if meme.id not in predictions]
        for meme in self._material.memes:
            if meme.id in predictions:
                self._tally.add(meme, predictions[meme.id])
        self._tally.before = self._tally.done
        # No longer finished: with --retry-failed a finished run gets new answers.
        if self._again and todo:
            self._manifest = self._manifest.model_copy(
                update={"interruptions": self._manifest.interruptions + 1, "finished": None}
            )
            self._folder.write_manifest(self._manifest)
        # Drops a line truncated by a crash, and the memes that are retried.
        self._folder.write_predictions(list(predictions.values()))
        self._progress.begin(self._tally)
        try:
            if todo:
                await self._judge(todo)
        finally:
            self._progress.end(self._tally)
        if self._left:
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in self._left.most_common())
            raise Unavailable(
                f"{self._left.total():,} of {len(self._material.memes):,} memes have no answer yet, for reasons that "
                f"may pass ({reasons}).",
                reason=UNFINISHED,
            )
        if self._manifest.finished is None:
            self._folder.write_manifest(self._manifest.model_copy(update={"finished": datetime.now(UTC)}))

    async def _valid_predictions(self) -> dict[str, Prediction]:
        """Valid predictions, the last one for each meme."""
        wanted = {meme.id for meme in self._material.memes}
        predictions = {p.meme: p for p in self._folder.predictions() if p.meme in wanted}
        if not self._plan.retry_failed:
            return predictions
        return {name: p for name, p in predictions.items() if not await self._may_pass(p)}

    async def _may_pass(self, prediction: Prediction) -> bool:
        """True if a failure's cause may be gone; a meme without a trial is always retried."""
        if prediction.outcome is not Outcome.FAILED:
            return False
        if not prediction.trial:
            return True
        failed = (await self._executor.docket.trials.record(prediction.trial)).last(TrialFailed)
        return failed is None or may_pass(failed)

    async def _judge(self, todo: Sequence[JudgedMeme]) -> None:
        ticking = asyncio.create_task(self._tick())
        try:
            with (self._plan.out / PREDICTIONS).open("a", encoding="ascii") as file:

                def keep(meme: JudgedMeme, prediction: Prediction, passing: bool) -> None:
                    # Synchronous, so that lines of concurrently finished memes can't interleave.
                    if passing:
                        self._left[prediction.reason] += 1
                    else:
                        # Passed to the OS at once. If it is lost in a crash, it is rebuilt from the docket.
                        file.write(prediction.model_dump_json(ensure_ascii=True) + "\n")
                        file.flush()
                        self._tally.add(meme, prediction)
                        self._progress.judged(self._tally)
                    self._watch_for_the_end(prediction, passing)

                await (self._here(todo, keep) if self._cluster is None else self._there(self._cluster, todo, keep))
        finally:
            ticking.cancel()
            # Cancelling it is no error of the run.
            await asyncio.gather(ticking, return_exceptions=True)

    async def _here(self, todo: Sequence[JudgedMeme], keep: Callable[[JudgedMeme, Prediction, bool], None]) -> None:
        """Judges in this process."""
        # One shared iterator: each worker takes the next meme when it has finished one.
        remaining = iter(todo)

        async def work() -> None:
            for meme in remaining:
                known = await self._known(meme)
                keep(meme, *await self._trier.try_meme(meme, known, partial(self._picture, meme)))

        await gather_or_cancel(*(work() for _ in range(min(self._plan.concurrency, len(todo)))))

    async def _there(
        self, cluster: Cluster, todo: Sequence[JudgedMeme], keep: Callable[[JudgedMeme, Prediction, bool], None]
    ) -> None:
        """Judges on a cluster the memes whose records are missing or incomplete."""
        known = {}
        remaining = []
        for meme in todo:
            record = await self._known(meme)
            # A line lost in a crash is rebuilt from the record, without a worker.
            if record is not None and not self._trier.to_be_resumed(record):
                keep(meme, *await self._trier.try_meme(meme, record, partial(self._picture, meme)))
                continue
            remaining.append(meme)
            if record is not None:
                known[meme.id] = record
        if not remaining:
            return
        pictures = {meme.id: path for meme in remaining if (path := self._material.picture(meme)) is not None}
        calls = self._plan.calls or self._plan.out / CALLS
        settings = court_settings(self._plan)
        judged = cluster.judged(
            remaining,
            trier=self._trier,
            known=known,
            pictures=pictures,
            calls=calls,
            settings=settings,
            control=self._plan.control,
        )
        # Closed even if keep() raises: otherwise workers would go on until the generator is collected.
        async with contextlib.aclosing(judged):
            async for meme, prediction, passing in judged:
                keep(meme, prediction, passing)

    async def _picture(self, meme: JudgedMeme) -> bytes | None:
        path = self._material.picture(meme)
        return None if path is None else await asyncio.to_thread(path.read_bytes)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(1)
            self._progress.tick(self._tally)

    def _watch_for_the_end(self, prediction: Prediction, passing: bool) -> None:
        """Aborts the run if a server is gone, which would fail all remaining memes one after the other."""
        # Timeouts count too: with a hanging server every meme times out.
        self._failures = self._failures + 1 if passing or prediction.reason in LATE else 0
        # A meme that used up its patience, during which no other was answered, is sufficient evidence.
        waited = passing and self._plan.patience_s > 0 and not self._plan.ray
        most = 1 if waited else _IN_A_ROW * max(self._plan.concurrency, 3)
        if self._failures >= most:
            raise Unavailable(
                f"The last {self._failures} memes in a row failed, the last with {prediction.reason}: something that "
                "trials need is not there.",
                reason=SERVER_GONE,
            )

    async def _known(self, meme: JudgedMeme) -> TrialRecord | None:
        """The record of a meme's last trial in this run."""
        trials = self._trials.get(self._trier.request(meme), ())
        return await self._executor.docket.trials.record(trials[-1]) if trials else None
