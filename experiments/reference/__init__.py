"""Reference curves: stored results of presets, and a script that measures them again."""
