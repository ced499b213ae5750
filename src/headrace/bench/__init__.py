"""Measurements: accuracy against golden values, throughput, prefix reuse."""
