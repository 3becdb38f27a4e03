"""What a user writes: optimal control problems, stage functions, integrators (CasADi SX)."""
