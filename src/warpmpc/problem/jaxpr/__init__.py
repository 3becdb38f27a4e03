"""Reading a jaxpr as CasADi SX expressions, one rule per primitive."""
