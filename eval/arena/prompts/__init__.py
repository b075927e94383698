"""The arena's prompts: one file each and version, rendered strictly (:mod:`eval.models.prompts`)."""
