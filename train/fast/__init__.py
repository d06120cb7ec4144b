"""Engines: how policies act and learn on this machine. `Plain` is the reference; the others return the same."""
