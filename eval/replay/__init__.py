"""Recorded trials run again by the current code, with the recorded replies of the models."""
