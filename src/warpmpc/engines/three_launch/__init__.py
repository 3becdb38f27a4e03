"""One SQP iteration in three launches around the loop of the staged engine."""
