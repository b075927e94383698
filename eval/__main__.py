"""``python -m eval`` is the command ``memecourt-eval``."""

from eval.cli import main

main()
