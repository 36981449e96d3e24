"""When sentences that are done are taken out of the batch that is searched."""

# To take them out moves a part of every cache, which costs about so much of a step.
_COST = 0.05


class Leaving:
    """They leave when, by staying, they have cost as much as that does: so in all never over twice the least possible,
    whether many are done at once or, in a long batch, one after the other."""

    def __init__(self) -> None:
        self._wasted = 0.0  # of steps, since the last time

    def pays(self, n_done: int, n_sentence: int) -> bool:
        """Whether they leave now: n_done of n_sentence in the step that was made."""
        self._wasted += n_done / n_sentence
        if self._wasted < _COST:
            return False
        self._wasted = 0.0
        return True
