"""Queues that memes come from: each is judged by a court, and acknowledged only together with its answer."""
