"""Figures of labels and what they can be held against."""
