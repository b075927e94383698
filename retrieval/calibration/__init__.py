"""Calibration: estimates the worth of a library's vote from the library itself."""
