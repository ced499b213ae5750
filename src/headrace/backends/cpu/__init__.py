"""The CPU backend: a graph compiled once into a native plan, a step in one native call."""

from __future__ import annotations

from headrace.backends.cpu.backend import CpuBackend

__all__ = ["CpuBackend"]
