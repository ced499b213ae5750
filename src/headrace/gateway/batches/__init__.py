"""Batches: many requests in a file, answered in the gaps of online traffic."""
