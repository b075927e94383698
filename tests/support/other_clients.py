"""Helpers of tests of other clients."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NODE = ROOT / ".cache" / "node"
