"""What all benchmarks share: timing, rows, sweeps, plots."""
