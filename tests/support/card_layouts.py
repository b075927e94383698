"""Helpers of tests of card layouts."""

from eval.datasets.card import DatasetCard, card_of


def counts_of(read, task):
    found = {}
    for meme in read.memes:
        for label in meme.tasks.get(task, ()):
            found[label] = found.get(label, 0) + 1
    return found


def own_card(kind: str, files: list[str], **changes) -> DatasetCard:
    content = {
        "format": 1,
        "id": "ours",
        "title": "Ours",
        "layout": {"kind": kind, "pictures": ["images"]},
        "splits": [{"name": "all", "role": "test", "files": files}],
        "fields": {"id": "id", "text": "text", "picture": "image"},
        "tasks": [
            {
                "id": "harm",
                "kind": "binary",
                "of": "label",
                "map": {"1": "harmful", "0": "harmless"},
                "court": {"harmful": ["harmful"], "benign": ["harmless"]},
            }
        ],
    }
    return card_of(content | changes, "ours.toml")
