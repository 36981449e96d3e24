"""Two resolved recipes, or parts of them, side by side."""

import json
from collections.abc import Mapping
from typing import Any


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Options that the two set differently: {dotted name: (old, new)}, in the order of the options."""
    found: dict[str, tuple[Any, Any]] = {}
    for key in dict.fromkeys((*old, *new)):
        name = f"{prefix}{key}"
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found |= differences(a, b, f"{name}.")
        elif json.dumps(a, sort_keys=True) != json.dumps(b, sort_keys=True):
            found[name] = (a, b)
    return found
