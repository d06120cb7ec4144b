"""Evaluation over whole episodes: trained policies, networks, scripts and random play."""
