"""Requests in, tokens out: scheduler, key-value blocks, prefix tree. Knows no clock, process or network."""
