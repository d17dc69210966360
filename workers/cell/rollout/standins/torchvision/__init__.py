"""Stand-in for torchvision: SGLang imports it while loading its image processors, which a text model never runs.

Any submodule can be imported and any name taken from it; using one is an error. On the path only without CUDA.
"""

import importlib.abc
import importlib.machinery
import sys
import types

__version__ = "0.28.0"


class _Unusable:
    """Whatever SGLang imports by name. It may be subclassed and its attributes taken, but not called."""

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        raise RuntimeError("image processing needs the real torchvision")


class _Names(type):
    """Lets ``InterpolationMode.BICUBIC`` and the like be evaluated at import time."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Submodule(types.ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Names(name, (_Unusable,), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname: str, path: object = None, target: object = None):
        if fullname.startswith(__name__ + "."):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Submodule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


sys.meta_path.append(_Finder())

from torchvision import io, ops, transforms  # noqa: E402, F401
