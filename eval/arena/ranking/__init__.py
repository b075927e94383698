"""Ratings from battles: counted win rates, Elo, Bradley-Terry with and without covariates, and how sure they are.

NumPy and nothing else: what is measured must not depend on how somebody else's package treats a tie.
"""
