"""Machine translation models in Python: `nmt.prepare`, `nmt.train` and `nmt.load` do what the commands do."""

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nmt.api import Model as Model
    from nmt.api import Translation as Translation
    from nmt.api import load as load
    from nmt.cli.from_python import prepare as prepare
    from nmt.cli.from_python import train as train
    from nmt.decoding.request import Request as Request
    from nmt.decoding.translator import Scored as Scored
    from nmt.errors import AlarmError as AlarmError
    from nmt.errors import NmtError as NmtError

_MODULES = {
    "prepare": "nmt.cli.from_python",
    "train": "nmt.cli.from_python",
    "load": "nmt.api",
    "Model": "nmt.api",
    "NmtError": "nmt.errors",
    "AlarmError": "nmt.errors",
    "Request": "nmt.decoding.request",
    "Scored": "nmt.decoding.translator",
    "Translation": "nmt.api",
}


def __getattr__(name: str) -> Any:
    """Import a public name on its first use: `load` needs torch, whose import takes seconds and would delay --help."""
    if _MODULES.get(name) in ("nmt.api", "nmt.decoding.translator"):
        import_module("nmt.processes").sleep_while_waiting()  # before torch is imported
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    if name == "__version__":
        return metadata.version("nmt-toolkit")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted([*_MODULES, "__version__", "__doc__", "__name__"])
