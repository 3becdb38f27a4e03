"""Measurements: how fast, how accurate, how much memory, as one JSON row per case."""
