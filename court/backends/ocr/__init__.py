"""Text recognition (OCR) in child processes or on a server."""
