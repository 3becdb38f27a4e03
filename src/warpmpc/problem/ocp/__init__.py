"""Optimal control problems: what a user writes, and how it becomes stages."""
