"""Requests that are routed: by a policy to one of several models, here or elsewhere."""
