"""The algorithms: a folder or a file each, and a line in the table of train/state/registry.py."""
