"""Which instances failed, and why."""
