"""Interchangeable engines behind one protocol; register a new one in `BACKENDS`."""
