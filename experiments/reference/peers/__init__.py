"""Comparison rows: wdjax and programs of other authors on their tasks, on the same card."""
