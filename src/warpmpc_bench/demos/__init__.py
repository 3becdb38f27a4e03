"""Demonstrations: closed loops and batches, with pictures."""
