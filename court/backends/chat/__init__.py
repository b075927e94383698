"""Chat models behind a chat-completions server."""
