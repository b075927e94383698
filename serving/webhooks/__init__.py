"""Webhooks: signed messages over HTTP with at-least-once delivery, by Standard Webhooks 1.0.0."""
