"""``python -m memecourt_queue``."""

from memecourt_queue.cli import main

main()
