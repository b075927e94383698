"""Queue consumers: have a court judge memes from a queue, and acknowledge each only together with its answer."""

__version__ = "0.1.0"
