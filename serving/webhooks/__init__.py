"""Webhooks: what happens is told to receivers over HTTP, signed, at least once, by Standard Webhooks 1.0.0."""
