"""Closed loops: solvers and simulated systems in batches on the device."""
