"""The arena: models answer the same questions about memes, judge each other's answers in pairs, and are ranked.

After MemeArena (Chen et al., EMNLP 2025), with what ProBench adds for order and style. docs/arena.md tells what was
left open there and how it is done here.
"""
