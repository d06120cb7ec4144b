"""The loop over chunks of updates on the host, and its output."""
