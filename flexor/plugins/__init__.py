"""flexor's solvers inside other simulators: MuJoCo, Gymnasium, Newton. A plug-in is imported when it is first used."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flexor.plugins import gymnasium, mujoco, newton

__all__ = ["gymnasium", "mujoco", "newton"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return importlib.import_module(f"flexor.plugins.{name}")
    raise AttributeError(f"flexor.plugins has no plug-in {name!r}; there are {', '.join(__all__)}.")


def __dir__() -> list[str]:
    return list(__all__)
