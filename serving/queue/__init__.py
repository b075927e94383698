"""Queue consumers: judge memes from a queue and acknowledge each only together with its answer."""
