"""What all engines share: JAX calls of kernels, loading, devices, tiles."""
