"""Policies inside of the firmware of a robot: its source, and closed loops with it."""
