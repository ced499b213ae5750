"""What `benchmarks/peers.py` is made of: the peers, the work they are given, and the report."""
