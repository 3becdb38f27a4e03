"""Scalar programs in, generated source out."""
