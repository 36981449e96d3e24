"""Training and using machine translation models: `nmt.load(run)` is the way in from Python."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nmt.api import load as load
    from nmt.decoding.constraints.request import Request as Request


def __getattr__(name: str) -> Any:
    """Names only when they are asked for: `load` brings torch, which takes seconds that --help need not wait."""
    if name == "load":
        from nmt.api import load

        return load
    if name == "Request":
        from nmt.decoding.constraints.request import Request

        return Request
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
