"""Curves and page of `wdjax report`."""
