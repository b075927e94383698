"""``python -m eval`` is the command ``memecourt-eval``."""

from serving.cli import start


def main() -> None:
    """Entry point."""
    start("eval.cli")


if __name__ == "__main__":
    main()
