"""Devices and processes: what they tell each other, what they hold, and how they wake."""
