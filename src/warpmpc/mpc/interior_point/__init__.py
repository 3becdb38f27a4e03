"""The interior-point method for converged solutions: one Newton system per iteration, no QPs."""
