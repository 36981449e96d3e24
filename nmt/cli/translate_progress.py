"""The bar that tells how far nmt-translate is, how fast, and when it will be done."""

import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

from tqdm import tqdm

if TYPE_CHECKING:
    _Tqdm = tqdm[NoReturn]
else:
    _Tqdm = tqdm

_DELAY = 2.0  # seconds: what is done by then needs no bar


class Bar(_Tqdm):
    """Lines on stderr, of `total` where that is known. n_known: those that were there before, which count for no speed.

    tqdm shows a bar whenever something is written above it, however early; this one does not.
    """

    def __init__(self, doing: str, total: int | None, n_known: int, shown: bool) -> None:
        super().__init__(
            desc=doing, total=total, initial=n_known, unit=" lines", delay=_DELAY, disable=not shown, file=sys.stderr
        )

    def clear(self, *args: Any, **kwargs: Any) -> None:
        if self._is_due():
            super().clear(*args, **kwargs)

    def refresh(self, *args: Any, **kwargs: Any) -> None:
        if self._is_due():
            super().refresh(*args, **kwargs)

    def _is_due(self) -> bool:
        return not self.disable and time.time() >= self.start_t + _DELAY
