"""Benchmark of batched factorisations and solves."""
