"""Exported policies: C99, integer variants, ONNX, the contract, and whether all of them agree."""
