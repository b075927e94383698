"""The arena: models answer the same questions about memes, judge each other's answers in pairs, and are ranked.

The method follows MemeArena (Chen et al., EMNLP 2025) and takes the treatment of order and style from ProBench.
docs/methods.md lists what the paper leaves open and how it is done here.
"""
