"""The SQP iteration: general, in three launches, and on chip."""
