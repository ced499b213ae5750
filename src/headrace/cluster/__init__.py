"""Workers on the nodes of a Ray cluster: Ray places and restarts them, and they join the gateway."""

from headrace.cluster.cluster import Cluster
from headrace.cluster.messages import Pool
from headrace.cluster.settings import ClusterSettings

__all__ = ["Cluster", "ClusterSettings", "Pool"]
