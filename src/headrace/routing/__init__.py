"""Which model answers a request: what each is likely to make of it, and the cheapest that will do.

Knows nothing of HTTP, processes or the wall clock.
"""
