"""Derivatives of QP solutions by two methods."""
