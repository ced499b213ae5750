"""Who computes: the step contract, and the backends behind it."""
