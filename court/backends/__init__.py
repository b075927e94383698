"""Adapters of the ports: whatever needs arrays, processes, OCR or a network."""
