"""Signs that a text tries to instruct the model."""
