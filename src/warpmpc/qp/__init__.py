"""Batched linear systems and quadratic programs."""
