"""Interchangeable linear solvers behind one protocol."""
