"""Trials in which every field that strangers or models control is markup or script, none of which may take effect."""

from court.events import VerdictGiven
from tests.support.paths import read_texts
from tests.support.shown_trials import drawn_picture, full_trial

PAYLOADS: list[str] = read_texts("hostile")["PAYLOADS"]


def hostile(trial_id, payloads):
    """Returns the events of a trial in which every text and id controlled by others is a payload, in turn."""
    turn = iter(range(10**6))

    def word(_="", least=1):
        return payloads[next(turn) % len(payloads)]

    events = full_trial(
        trial_id,
        picture=drawn_picture(),
        text=word(),
        description=word(),
        rationale=word(),
        harmful=(word(), word()),
        harmless=(word(),),
        transform=word,
        namespace=word()[:100],
        content_id=word(),
        model=word(),
    )
    opened, verdict_event = events[0], events[-1]
    assert isinstance(verdict_event, VerdictGiven)
    versions = opened.versions.model_copy(update={"software": word(), "library": word(), "encoder": word()})
    policy = opened.policy.model_copy(update={"id": word(), "version": word(), "digest": word()})
    events[0] = opened.model_copy(
        update={
            "versions": versions,
            "policy": policy,
            "request_id": word(),
            "settings": {**opened.settings, word(): word()},
        }
    )
    reasons = tuple(one.model_copy(update={"detail": word()}) for one in verdict_event.verdict.review)
    events[-1] = verdict_event.model_copy(
        update={"verdict": verdict_event.verdict.model_copy(update={"review": reasons})}
    )
    out = []
    for event in events:
        if event.kind == "PrecedentsCited":
            exhibits = tuple(
                one.model_copy(update={"id": f"{word()}{place}", "categories": (word(),), "source": word()})
                for place, one in enumerate(event.findings.exhibits)
            )
            library = event.findings.library.model_copy(update={"name": word()})
            event = event.model_copy(
                update={
                    "findings": event.findings.model_copy(
                        update={"exhibits": exhibits, "library": library, "notes": (word(),)}
                    )
                }
            )
        out.append(event)
    return out
