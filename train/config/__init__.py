"""Configuration of a run: dataclasses, read from YAML."""
