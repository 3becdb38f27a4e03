"""Factorisation and ADMM loop by panels, for patterns and stages of any size."""
