"""Slower tiers of the KV cache: blocks that the prefix tree gives up are kept on disk, and fetched again."""
