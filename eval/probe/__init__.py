"""The probe: an adaptive search for what a model does not understand about harmful memes (AdamMeme, ACL 2025).

Memes are sorted into kinds of harm (:mod:`eval.probe.mining`), a target model's answers about them are scored against
a reference (:mod:`eval.probe.scoring`), and their texts are rewritten, step by step, into what the target understands
less well (:mod:`eval.probe.refining`).
"""
