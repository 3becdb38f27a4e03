"""Benchmark of batched QPs and their gradients."""
