"""Measuring the court. Always ``from eval.x import …``: a bare import of this package would hide the builtin."""
