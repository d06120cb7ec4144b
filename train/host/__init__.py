"""The host's side of a run: chunks of updates, and what happens between them."""
