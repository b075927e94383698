"""Helpers of tests of console pages."""

from __future__ import annotations

AXE = {"resultTypes": ["violations"], "rules": {"target-size": {"enabled": True}}}


"""Options of axe-core: its default rules, and the rule of WCAG 2.2 AA that is off by default."""
