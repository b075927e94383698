"""The sets of texts that measure the detector of prompt injections, by name."""

from tests.support.held_out import HELD_OUT, SEEN, STEERING
from tests.support.injections import INJECTIONS, marked

SETS: dict[str, list[str]] = {
    "steering-seen": [marked(text, "7c1e0a9b3d5f2468") for _, text in INJECTIONS],
    "steering-held-out": [text for texts in STEERING.values() for text in texts],
    "lookalikes-seen": [text for texts in SEEN.values() for text in texts],
    "lookalikes-held-out": [text for texts in HELD_OUT.values() for text in texts],
}
