"""Parameters by their names: which ones a pattern means, which are frozen, and which have a learning rate of their own.

A pattern is a name with * and ? in it, as for files: `encoder.*`. A shared matrix has several names, and whoever means
one of them means the matrix.
"""

import difflib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from torch import nn

from nmt.errors import RecipeError


def names_of(model: nn.Module) -> dict[nn.Parameter, list[str]]:
    """Every parameter once, with all its names; the first is that of the checkpoints."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, param in model.named_parameters(remove_duplicate=False):
        names.setdefault(param, []).append(name)
    return names


def freeze(model: nn.Module, patterns: Sequence[str]) -> str:
    """Take parameters out of training: no gradient, so no decay and no optimizer state either.

    Returns a line about it, which names what else is frozen because it is shared; '' if there are no patterns.
    Raises RecipeError when a pattern means nothing, or when nothing is left to train.
    """
    names = names_of(model)
    frozen = dict.fromkeys(param for pattern in patterns for param in _meant(names, pattern, "train.freeze"))
    for param in frozen:
        param.requires_grad_(False)
    if frozen.keys() == names.keys():
        raise RecipeError(f"train.freeze: {', '.join(patterns)} freezes every parameter, so nothing would train.")
    numbers = (sum(param.numel() for param in params) for params in (frozen, names))
    line = f"frozen: {len(frozen)} of {len(names)} parameters, {{:,}} of {{:,}} numbers".format(*numbers)
    line += "".join(f"; {names[p][0]} is also {' and '.join(names[p][1:])}" for p in frozen if len(names[p]) > 1)
    return line if frozen else ""


def rate_factors(model: nn.Module, factor_of: Mapping[str, float]) -> dict[nn.Parameter, float]:
    """The factors of the learning rate that are not 1. factor_of: by pattern; of those that mean one, the first counts.

    Raises RecipeError when a pattern means nothing.
    """
    names = names_of(model)
    found: dict[nn.Parameter, float] = {}
    for pattern, factor in factor_of.items():
        for param in _meant(names, pattern, "optim.rate_of"):
            found.setdefault(param, factor)
    return found


def _meant(names: Mapping[nn.Parameter, list[str]], pattern: str, option: str) -> list[nn.Parameter]:
    found = [param for param, its_names in names.items() if any(fnmatchcase(name, pattern) for name in its_names)]
    if not found:
        every = [name for its_names in names.values() for name in its_names]
        parts = {".".join(name.split(".")[:n]) + ".*" for name in every for n in range(1, name.count(".") + 1)}
        close = difflib.get_close_matches(pattern, [*sorted(parts), *every], n=3, cutoff=0.5)
        shown = close or sorted(part for part in parts if part.count(".") == 1)
        raise RecipeError(f"{option}: {pattern!r} means no parameter of this model. The nearest: {', '.join(shown)}.")
    return found
