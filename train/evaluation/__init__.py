"""Whole episodes of learned policies, scripts and random play."""
