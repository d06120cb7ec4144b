"""Speed, measured: each script prints its workload, the card, and the numbers that RESULTS.md holds."""
