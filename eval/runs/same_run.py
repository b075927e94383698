"""Compares a resumed run with its original inputs."""

from __future__ import annotations

from eval.runs.folder import STAND_IN, RunFolder, RunManifest
from eval.runs.material import Material, on_template
from eval.runs.plan import Plan
from eval.runs.sole_use import refuse_different


def require_same_material(begun: RunManifest, folder: RunFolder, plan: Plan, material: Material) -> None:
    """Compares a resumed run with its manifest before anything is loaded.

    Raises BadRequest, which names all differences.
    """
    now = {
        "dataset": plan.dataset.id,
        "split": plan.split,
        "limit": plan.limit,
        "seed": plan.seed,
        "procedure": plan.procedure,
        "control": plan.control,
        "comparator": plan.comparator,
        "question": plan.question,
        "dropped_labels": plan.dropped_labels,
        "text_only": plan.text_only,
        "language": plan.language,
        "server": plan.server,
    }
    differ = [_was(name, getattr(begun, name), value) for name, value in now.items() if getattr(begun, name) != value]
    names = sorted(begun.data.keys() | material.files.keys())
    differ += [f"the file {name}" for name in names if begun.data.get(name) != material.files.get(name)]
    if (plan.out / STAND_IN).exists():
        differ.append("a plain picture beside each text, which this version judges alone")
    # Same files but other memes: another version reads them differently, and the halves would not match. Templates are
    # computed when a run starts, not read from the data set.
    if not differ and tuple(on_template(meme, {}) for meme in folder.memes()) != material.memes:
        differ = ["how this version of MemeCourt reads the data set"]
    refuse_different("run", differ)


def require_same_court(begun: RunManifest, now: RunManifest) -> None:
    """Compares everything else. Raises BadRequest, which names all differences."""
    names = ("models", "prompts", "policy", "library", "encoder")
    differ = [
        _was(name, getattr(begun, name), getattr(now, name))
        for name in names
        if getattr(begun, name) != getattr(now, name)
    ]
    for name in sorted(begun.settings.keys() | now.settings.keys()):
        before, after = begun.settings.get(name), now.settings.get(name)
        if before != after:
            differ.append(_was(f"setting {name}", before, after))
    refuse_different("run", differ)


def _was(name: str, before: object, after: object) -> str:
    return f"{name} (was {_short(before)}, is {_short(after)})"


def _short(value: object) -> str:
    text = "nothing" if value in ("", None) else str(value)
    return text if len(text) <= 40 else f"{text[:36]} …"
