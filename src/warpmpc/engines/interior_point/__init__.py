"""The interior-point method between linear systems: what it does row by row, in six launches."""
