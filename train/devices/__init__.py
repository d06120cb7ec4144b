"""Devices and processes: collectives, random numbers of blocks, memory and startup."""
