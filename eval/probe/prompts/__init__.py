"""The prompts of the probe, one file per role and version; :func:`eval.judges.prompts.load` reads them."""
