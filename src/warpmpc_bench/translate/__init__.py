"""Benchmark of generated code over its length."""
