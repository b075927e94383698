"""Ratings from battles: counted win rates, Elo, Bradley-Terry with and without covariates, and their uncertainty.

Uses only NumPy: results must not depend on how a third-party package treats ties.
"""
