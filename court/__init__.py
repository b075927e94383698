"""The court: what a trial is.

Imports nothing of the other folders, no gRPC and no database; arrays, HTTP and OCR only in ``court.backends``.
"""
