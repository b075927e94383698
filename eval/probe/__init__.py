"""The probe: an adaptive search for a model's weaknesses in understanding harmful memes (AdamMeme, ACL 2025).

Memes are sorted into kinds of harm (:mod:`eval.probe.mining`), a target model's answers about them are scored against
a reference (:mod:`eval.probe.refining`), and their texts are rewritten step by step so that the target understands them
less well (:mod:`eval.probe.refining`).
"""
