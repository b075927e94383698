"""Pages that read: sign-in, the list of trials, a trial with its pictures."""

from __future__ import annotations

from collections.abc import Sequence

from serving.console.pages import bundle, compare, pictures, signin, trial, trials
from serving.console.registry import Page

PAGES: Sequence[Page] = (*signin.PAGES, *trials.PAGES, *trial.PAGES, *compare.PAGES, *bundle.PAGES, *pictures.PAGES)
"""In the order of the navigation."""
