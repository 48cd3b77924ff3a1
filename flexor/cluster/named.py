"""Executors as the command line names them."""

from flexor.cluster.executor import AbstractExecutor, Local
from flexor.cluster.on_ray import Ray


def executor(name: str) -> AbstractExecutor:
    """`local`; `ray`, the cluster of the variable RAY_ADDRESS or else the processors of this machine; or `ray:ADDRESS`."""
    kind, colon, address = name.partition(":")
    if name == "local":
        return Local()
    if kind == "ray" and bool(colon) == bool(address):
        return Ray(address or None)
    raise ValueError(f"there is no executor '{name}'; use local, ray or ray:ADDRESS, such as ray:auto or ray:10.0.0.1:6379.")
