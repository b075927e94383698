"""The listener that the console and the HTTP API have in common: sockets, TLS, and connections that end in time."""
