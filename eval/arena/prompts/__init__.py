"""The arena's prompts: one file per prompt and version, rendered strictly (:mod:`eval.models.metered`)."""
