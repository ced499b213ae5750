"""Which replica: starting workers, watching them, restarting them."""

from headrace.fleet.endpoint import EncryptedPort
from headrace.fleet.fleet import Fleet
from headrace.fleet.prefixes import Pin, Prefixes
from headrace.fleet.registry import Registry
from headrace.fleet.restart import RestartPolicy
from headrace.fleet.shape import FleetShape, Shapes
from headrace.fleet.state import ReplicaHealth, State
from headrace.fleet.stream import Stream

__all__ = [
    "EncryptedPort",
    "Fleet",
    "FleetShape",
    "Pin",
    "Prefixes",
    "Registry",
    "ReplicaHealth",
    "RestartPolicy",
    "Shapes",
    "State",
    "Stream",
]
