"""The expert witness measured on claims whose truth is known."""
