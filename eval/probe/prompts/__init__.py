"""The prompts of the probe, one file per role and version; :func:`eval.models.metered.load` reads them."""
