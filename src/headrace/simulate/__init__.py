"""`headrace simulate`: the scheduler, cache and balancer that serve, driven by a model of time."""
