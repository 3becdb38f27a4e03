"""Warp kernels and their JAX calls; the only layer (with codegen) that knows Warp."""
