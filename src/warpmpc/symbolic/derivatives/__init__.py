"""Stage functions with their derivatives, and where their values go in the QP."""
