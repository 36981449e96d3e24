"""What beam and length penalty would choose among hypotheses that one search has found: arithmetic, no new search.

A penalty decides two things: which of the hypotheses that have ended is best, and when a search ends. The first is
done here, the second is not: a search under another penalty may end earlier or later than the one that found these, and
no more than `beam` of them are kept. So what is chosen here is nearly, not always, what that search returns.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from nmt.decoding.long_lines import join_texts
from nmt.decoding.scoring.scorer import LengthPenalty, length_divisor
from nmt.decoding.search.beam import Hypothesis
from nmt.decoding.translation import Translation

PENALTIES: tuple[LengthPenalty, ...] = ("wu", "average")
ALPHAS = (0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4)
# Neither the mildest nor the strongest: it ends about when the others would.
SEARCHED_WITH: tuple[LengthPenalty, float] = ("wu", 1.0)


class Setting(NamedTuple):
    """The options of beam search that are chosen on validation data."""

    beam: int
    length_penalty: LengthPenalty
    alpha: float

    @property
    def options(self) -> dict[str, object]:
        """The options by their names in the section `decode`."""
        return self._asdict()


def settings_of(beam: int, present: Setting) -> list[Setting]:
    """What is tried with a beam, the penalty of the present setting among it.

    Greedy search looks no further than its first end, so it has no use for a penalty; and `none` has none for alpha.
    """
    if beam == 1:
        return [present._replace(beam=1)]
    known = [Setting(beam, "none", present.alpha)]
    known += [Setting(beam, penalty, alpha) for penalty in PENALTIES for alpha in ALPHAS]
    here = present._replace(beam=beam)
    if here not in known:
        known.append(here)
    return sorted(known, key=lambda one: (("none", *PENALTIES).index(one.length_penalty), one.alpha))


def rerank(translations: Sequence[Translation], setting: Setting) -> list[str]:
    """The text of the best hypothesis of each line under the length penalty of a setting; of equals the first.

    translations: with all hypotheses that a search under `setting.beam` has kept.
    """
    longest = max((len(one.ids) for each in translations for one in each.hypotheses), default=0)
    divisor = length_divisor(torch.arange(longest + 2), setting.length_penalty, setting.alpha).tolist()

    def best(found: Sequence[Hypothesis]) -> int:
        return max(range(len(found)), key=lambda n: (found[n].score / divisor[len(found[n].ids) + 1], -n))

    return list(_texts(translations, best))


def _texts(translations: Sequence[Translation], best: Callable[[Sequence[Hypothesis]], int]) -> Iterator[str]:
    for one in translations:
        if one.split is not None:
            yield join_texts(one.split, list(_texts(one.parts, best)))
        else:
            yield one.texts[best(one.hypotheses)] if one.hypotheses else one.text
