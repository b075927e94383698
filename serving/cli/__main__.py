"""``python -m serving.cli`` is the command ``memecourt``."""

from serving.cli.main import main

main()
