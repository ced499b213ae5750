"""Disaggregated serving between two workers: one computes a prompt, the other goes on from its blocks.

`outbox.py` is the prefill worker's side, `inbox.py` the decode worker's; `words.py` is what they say.
"""
