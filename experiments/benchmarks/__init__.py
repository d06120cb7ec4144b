"""Speed, measured: `wdjax bench` is the suite; RESULTS.md holds its numbers."""
