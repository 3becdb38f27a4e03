"""Host-side analysis of one sparsity pattern: ordering, elimination, schedules (NumPy only)."""
