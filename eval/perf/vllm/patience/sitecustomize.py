"""Makes vLLM's processes sleep instead of busy-waiting; its folder is put on their path on machines with few cores.

They wait for each other in loops of ``os.sched_yield``. On a machine with two cores, and with Linux 6.18's scheduler,
two processes that yield to each other starve all others: clients stalled for 40 s until a generation had ended, and
vLLM could not notice that one had disconnected.
"""

import os
import time

if hasattr(os, "sched_yield"):
    os.sched_yield = lambda: time.sleep(20e-6)
