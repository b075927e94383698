"""``python -m serving.cli`` is the command ``memecourt``."""

from serving.cli import start

start()
