"""Helpers of tests of docket."""
