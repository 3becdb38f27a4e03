"""Benchmark systems shared by tests, examples and benchmarks."""
