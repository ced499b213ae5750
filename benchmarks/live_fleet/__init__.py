"""Routing measured on a live fleet of three small models: what it saves at equal quality, and why no more."""
