"""Complete trial records with pictures, written for tests of pages; tame, about invented groups."""

import hashlib
import io
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from court.backends.pictures.normalise import pixels_sha256
from court.events import (
    AnswerGiven,
    AnyEvent,
    Described,
    MemeIdentity,
    ModelCall,
    NearDuplicate,
    NearDuplicatesFound,
    OddsGiven,
    PolicyReference,
    PrecedentReading,
    PrecedentsCited,
    Procedure,
    QuestionAsked,
    QuestioningEnd,
    Role,
    Ruling,
    Side,
    SideRested,
    Summarised,
    TextRead,
    TextSource,
    TrialOpened,
    VerdictGiven,
    Versions,
)
from court.examination import entropy
from court.meme import Frame, Picture, PictureFormat
from court.policy import DEFAULT_POLICY
from court.precedents import Findings, LibraryIdentity, MinSimilarity, Precedent, Search, TallyEntry, VoteSettings, vote
from court.settings import TrialSettings
from court.verdict import Finding, Label, Review, ReviewReason, ScoreMeaning, Strength, Strengths, Verdict
from eval.synthetic.scenes import draw_meme

BEGAN = datetime(2026, 11, 21, 20, 44, tzinfo=UTC)
TEXT = "Monday people,\ngo back to bed"

PRECEDENTS = (
    ("starter-014", Label.HARMFUL, "crowd", "Tuesday people, go back where you came from", 0.91, 0.62),
    ("starter-031", Label.NOT_HARMFUL, "cat", "Not a Monday person, not a person on Monday", 0.72, 0.84),
    ("starter-007", Label.NOT_HARMFUL, "coffee", "Back to bed, the coffee is empty", 0.66, 0.48),
)

ROUNDS: dict[Side, Sequence[tuple[str, str, str]]] = {
    Side.ACCUSER: (
        (
            "Which people or animals are shown, and what are they doing?",
            "One drawn grey cat sits upright on a brown floor before a light wall. There are no people.",
            "A cat is shown under words that tell Monday people to go back.",
        ),
        (
            "What flags, uniforms or signs of a group can be seen on the cat or around it?",
            "None. There is no flag, no uniform and no sign; the wall behind it is plain.",
            "A cat under words that tell Monday people to go back; no flag, no uniform and no sign of a group is seen.",
        ),
        (
            "How is the cat's face drawn, and what mood does it show?",
            "The eyes are large and wide open, the nose is small. It looks awake and a little startled.",
            "A startled cat under words that tell Monday people to go back; no flag, no uniform and no sign of a "
            "group.",
        ),
    ),
    Side.DEFENDER: (
        (
            "What mood does the face of the animal show?",
            "It looks startled: its eyes are wide open, like those of somebody just woken.",
            "A cat that looks just woken, and words about going back to bed on a Monday.",
        ),
        (
            "What objects near the cat have to do with sleep or with work?",
            "Nothing else is drawn. The words alone name a bed.",
            "A cat that looks just awake, and words about going back to bed on a Monday.",
        ),
    ),
}
JUSTIFICATIONS = {
    Side.ACCUSER: "“Go back” is the form of a phrase that drives groups out, and precedent 1 used it for harm. "
    "Whoever is named, the words address people as a kind.",
    Side.DEFENDER: "The cat looks just woken, and the words send it to bed. Nobody is born a Monday person: the butt "
    "of the joke is a mood, and no group is shown or named.",
}
RATIONALE = (
    "The words “go back” echo precedent 1, as the Accuser says, but what they name is a bed. The picture shows a "
    "cat just woken and no flag, uniform or sign of a group. A mood on Mondays is no protected group, so the benign "
    "reading is strong."
)


@cache
def drawn_picture(scene: str = "cat", text: str = TEXT) -> Picture:
    """Returns a drawn meme as the court stores pictures."""
    file = io.BytesIO()
    image = draw_meme(scene, text)
    image.save(file, "PNG")
    png = file.getvalue()
    digest = hashlib.sha256(png).hexdigest()
    return Picture(
        format=PictureFormat.PNG,
        bytes_sha256=digest,
        pixels_sha256=pixels_sha256([png]),
        width=image.width,
        height=image.height,
        frame_count=1,
        frames=(Frame(png, image.width, image.height, 0),),
    )


class DrawnPrecedents:
    """A source of the pictures of PRECEDENTS."""

    async def pictures(self, ids: Sequence[str]) -> Sequence[Frame | None]:
        scenes = {id_: (scene, text) for id_, _, scene, text, _, _ in PRECEDENTS}
        return [drawn_picture(*scenes[id_]).frames[0] if id_ in scenes else None for id_ in ids]


class TrialBuilder:
    """A builder of a trial's events that numbers them and advances their times."""

    def __init__(self, trial_id: str, at: datetime) -> None:
        self.trial_id, self.at = trial_id, at
        self.events: list[AnyEvent] = []

    def add(self, kind: Any, *, after: float = 0.0, **values: Any) -> None:
        self.at += timedelta(seconds=after)
        self.events.append(kind(trial_id=self.trial_id, seq=len(self.events), at=self.at, **values))

    @property
    def opened(self) -> datetime:
        return self.events[0].at


def call(role: Role, task: str, took: float, tokens: tuple[int, int, int]) -> ModelCall:
    into, out, cached = tokens
    name = {Role.PROPOSER: "proposer", Role.JUDGE: "judge"}.get(role, "advocate")
    return ModelCall(
        role=role,
        model="qwen2.5-vl-7b",
        prompt_id=f"{name}/v1/{task}",
        prompt_digest="sha256:" + "5" * 64,
        tokens_in=into,
        tokens_out=out,
        tokens_cached=cached,
        latency_s=took,
        server="http://models.example:8000",
    )


def findings(precedents: Sequence[Precedent]) -> Findings:
    tally = tuple(TallyEntry(id=p.id, label=p.label, similarity=p.similarity) for p in precedents) + tuple(
        TallyEntry(id=f"starter-{100 + n}", label=Label.HARMFUL if n % 4 == 0 else Label.NOT_HARMFUL, similarity=0.5)
        for n in range(9)
    )
    settings = VoteSettings(k=12, tau=0.2, prior=0.45, prior_weight=0.5)
    return Findings(
        library=LibraryIdentity(
            name="starter", digest="sha256:" + "7" * 64, size=240, encoder="builtin/1", with_picture=240
        ),
        search=Search(alpha_asked=0.5, alpha=0.5, has_text=True, has_picture=True, exhibits=3, tally=25),
        floors=MinSimilarity(text=0.3, picture=0.4),
        exhibits=tuple(precedents),
        nearest_harmful=precedents[0],
        nearest_benign=precedents[1],
        tally=tally,
        vote_settings=settings,
    )


def drawn_precedents(text_of: Any = None) -> tuple[Precedent, ...]:
    return tuple(
        Precedent(
            id=id_,
            label=label,  # type: ignore[arg-type]
            text=text_of(text) if text_of else text,
            similarity=(by_text + by_picture) / 2,
            text_similarity=by_text,
            picture_similarity=by_picture,
            categories=("nationality",) if label is Label.HARMFUL else (),
            source="starter, train",
        )
        for id_, label, _, text, by_text, by_picture in PRECEDENTS
    )


def full_trial(
    trial_id: str = "0f6c3f0e-2a51-4c0a-9d7e-5b8a3d1f7c20",
    *,
    picture: Picture | None = None,
    at: datetime = BEGAN,
    text: str = TEXT,
    description: str = "A drawn grey cat with large eyes sits upright before a light wall. White letters stand "
    "above and below it. No flag, no uniform and no person is shown.",
    rationale: str = RATIONALE,
    harmful: tuple[str, ...] = ("“Go back” is the form of a phrase that drives groups out.",),
    harmless: tuple[str, ...] = (
        "The cat looks just woken, and the words name a bed.",
        "No flag, uniform or sign of a group is shown.",
    ),
    transform: Any = None,
    namespace: str = "forum",
    content_id: str = "post-4711",
    duplicates: tuple[NearDuplicate, ...] = (),
    review: bool = True,
    model: str = "qwen2.5-vl-7b",
    label: Label = Label.NOT_HARMFUL,
) -> list[AnyEvent]:
    """Returns the events of a full trial; ``transform`` transforms every text of a model and of precedents."""
    transform = transform or (lambda words: words)
    picture = picture or drawn_picture()
    builder = TrialBuilder(trial_id, at)
    settings = TrialSettings(rounds_min=2, rounds_max=6)
    builder.add(
        TrialOpened,
        procedure=Procedure.FULL,
        meme=MemeIdentity(
            bytes_sha256=picture.bytes_sha256,
            pixels_sha256=picture.pixels_sha256,
            format=picture.format.value,
            width=picture.width,
            height=picture.height,
            frame_count=picture.frame_count,
            frames_used=tuple(frame.index for frame in picture.frames),
            text_given=False,
            namespace=namespace,
            content_id=content_id,
        ),
        request_id="r-1",
        policy=PolicyReference(
            id=DEFAULT_POLICY.id, version=DEFAULT_POLICY.version, digest=DEFAULT_POLICY.digest, content=DEFAULT_POLICY
        ),
        fence_mark="mark",
        settings=settings.model_dump(mode="json"),
        versions=Versions(
            software="0.1.0",
            settings=settings.digest,
            prompts="sha256:" + "6" * 64,
            models=dict.fromkeys(("PROPOSER", "ACCUSER", "DEFENDER", "JUDGE"), model),
            encoder="builtin/1 sha256:" + "8" * 64,
            library="sha256:" + "7" * 64,
            text_reader="rapidocr/3.9",
        ),
    )
    builder.add(TextRead, after=0.4, text=text, source=TextSource.OCR, reader="rapidocr/3.9", latency_s=0.39)
    builder.add(PrecedentsCited, after=0.05, findings=findings(drawn_precedents(transform)), vote=None, latency_s=0.04)
    cited = builder.events[-1]
    assert isinstance(cited, PrecedentsCited)
    vote_on_record = vote(cited.findings.tally, cited.findings.vote_settings)
    builder.events[-1] = cited.model_copy(update={"vote": vote_on_record})
    if duplicates:
        builder.add(NearDuplicatesFound, after=0.02, duplicates=duplicates, latency_s=0.02)
    builder.add(
        Described,
        after=0.75,
        description=transform(description),
        call=call(Role.PROPOSER, "describe", 1.21, (1180, 96, 0)),
    )
    for side, role, began in ((Side.ACCUSER, Role.ACCUSER, 0.0), (Side.DEFENDER, Role.DEFENDER, 0.1)):
        before: float | None = None
        builder.at = builder.opened + timedelta(seconds=1.25 + began)
        for number, (question, answer, summary) in enumerate(ROUNDS[side], 1):
            prompt_tokens = 1000 + 90 * number
            ask_call = call(role, "ask", 0.62, (prompt_tokens, 31, prompt_tokens - 80))
            builder.add(QuestionAsked, after=0.65, side=side, round=number, question=transform(question), call=ask_call)
            answer_call = call(Role.PROPOSER, "answer", 0.81, (1210, 40, 1100))
            builder.add(AnswerGiven, after=0.85, side=side, round=number, answer=transform(answer), call=answer_call)
            bits = entropy(transform(summary))
            builder.add(
                Summarised,
                after=1.1,
                side=side,
                round=number,
                summary=transform(summary),
                justification=transform(JUSTIFICATIONS[side]),
                entropy=bits,
                entropy_change=None if before is None else abs(bits - before),
                call=call(role, "summarise", 1.08, (prompt_tokens + 60, 120, prompt_tokens - 20)),
            )
            last, before = before, bits
        converged = last is not None and before is not None and abs(before - last) < settings.epsilon
        reason = QuestioningEnd.CONVERGED if converged else QuestioningEnd.TIME
        builder.add(SideRested, side=side, rounds=len(ROUNDS[side]), reason=reason)
    builder.events.sort(key=lambda event: event.at)
    builder.events = [event.model_copy(update={"seq": seq}) for seq, event in enumerate(builder.events)]
    builder.at = builder.events[-1].at
    benign = label is Label.NOT_HARMFUL
    shown = {id_: drawn_picture(scene, words).frames[0].png for id_, _, scene, words, _, _ in PRECEDENTS}
    shown = {id_: hashlib.sha256(png).hexdigest() for id_, png in shown.items()}
    strengths = (Strength.WEAK, Strength.STRONG) if benign else (Strength.STRONG, Strength.WEAK)
    reasons = (
        Review(
            reason=ReviewReason.PRECEDENTS_DISAGREE,
            detail="The nearest precedent was found harmful, and most others were not.",
        ),
    )
    builder.add(
        VerdictGiven,
        after=3.2,
        verdict=Verdict(
            label=label,
            strengths=Strengths(harmful=strengths[0], benign=strengths[1]),
            harm_score=0.23 if benign else 0.81,
            harm_score_meaning=ScoreMeaning.LABEL_PROBABILITY,
            rationale=transform(rationale),
            finding=None if benign else Finding(category="nationality", clause="4", target="community"),
            review=reasons if review else (),
        ),
        ruling=Ruling(
            harmful_evidence=tuple(map(transform, harmful)),
            harmless_evidence=tuple(map(transform, harmless)),
            precedents=tuple(
                PrecedentReading(id=id_, supports=supports, picture=shown.get(id_, ""))  # type: ignore[arg-type]
                for (id_, *_), supports in zip(PRECEDENTS, ("harmful", "harmless", "neither"), strict=True)
            ),
            label=label,
        ),
        odds=OddsGiven(
            harmful=(0.21, 0.25), not_harmful=(0.74, 0.7), call=call(Role.JUDGE, "odds", 0.31, (8200, 2, 7900))
        ),
        call=call(Role.JUDGE, "judge", 2.9, (4210, 188, 900)),
    )
    return builder.events
