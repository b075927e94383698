"""Access control: TLS, tokens and scopes of callers."""
