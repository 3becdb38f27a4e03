"""Nonlinear MPC problems in batches."""
