"""Helpers of tests of arena judges."""

from eval.arena.events import Judged, ReplyCost
from eval.arena.words import Setting
from tests.support.arena_world import DIMENSIONS

CALL = ReplyCost(model="j", served="j", prompt="p", digest="d", calls=1, tokens_in=1, tokens_out=1, latency_s=0.1)


def judged(meme, a, b, judge, verdict, *, study="arena", setting=Setting.FUSED, task=0):
    return Judged(
        meme=meme,
        task=task,
        a=a,
        b=b,
        judge=judge,
        setting=setting,
        study=study,
        verdicts=dict.fromkeys(DIMENSIONS, verdict),
        why="because",
        call=CALL,
    )
