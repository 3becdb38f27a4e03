"""Table-driven LDL' factorisation and solves for any fixed pattern."""
