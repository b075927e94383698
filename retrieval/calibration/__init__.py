"""Calibration: estimates the reliability of a library's vote from the library itself."""
