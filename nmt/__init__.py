"""Training and using machine translation models: `nmt.load(run)` is the way in from Python."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nmt.api import load as load


def __getattr__(name: str) -> Any:
    """`load` only when it is asked for: it brings torch with it, which takes seconds that --help need not wait."""
    if name == "load":
        from nmt.api import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
