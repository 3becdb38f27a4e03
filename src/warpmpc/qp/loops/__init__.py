"""ADMM loops behind one protocol, and the registry of engines."""
