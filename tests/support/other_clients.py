"""Helpers of tests of other clients."""

from tests.support.paths import ROOT

NODE = ROOT / ".cache" / "node"
