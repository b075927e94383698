"""Makes vLLM's processes sleep where they would spin; its folder is put on their path where cores are few.

They wait for each other in loops of ``os.sched_yield``. On a machine of two cores, and with Linux 6.18's scheduler, two
that yield to each other leave out everybody else: clients stood still for 40 s until a generation was over, and vLLM
could not see that one had hung up.
"""

import os
import time


def _sleep() -> None:
    time.sleep(20e-6)


if hasattr(os, "sched_yield"):
    os.sched_yield = _sleep
