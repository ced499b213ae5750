"""Headrace: a fast, exact inference server for open language models."""

__version__ = "0.1.0"
