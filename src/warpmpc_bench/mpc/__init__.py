"""Benchmark of closed loops of the MPC solver."""
