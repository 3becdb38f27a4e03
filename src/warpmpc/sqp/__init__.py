"""Nonlinear MPC problems in batches: sequential quadratic programming."""
