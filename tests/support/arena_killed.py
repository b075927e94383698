"""Helpers of tests of arena killed."""

from tests.support.arena_world import Arena, ArenaModel

TARGETS = {"ash": 1.0, "beech": 0.0, "cedar": -1.0}
DELAY_S = 0.02


def arena_in(root, on_call=lambda: None):
    def reply(request, usual):
        on_call()
        return usual

    voices = {name: ArenaModel(name, TARGETS, says=reply) for name in TARGETS}
    return Arena(root, memes=4, strengths=TARGETS, judges=["ash", "beech"], voices=voices)
