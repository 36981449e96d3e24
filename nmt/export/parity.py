"""Comparison of an exported model with the original: both translate the same lines and score the same translations.

What is compared with is anything that translates and scores; each engine has one of these in its own file.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from nmt.data.subwords import Subwords
from nmt.decoding.batch_search import BatchSearch
from nmt.decoding.long_lines import MAX_SRC_LEN
from nmt.decoding.scorer import score_tokens
from nmt.decoding.translator import Translator
from nmt.errors import DataError, RunError
from nmt.models.base import SearchModel
from nmt.recipe.decode_options import DecodeConfig

MOST_TOKENS = 200  # of a greedy translation, EOS not counted


class Exported(Protocol):
    """An exported model, on the CPU, as far as a comparison needs to know it."""

    def greedy(self, lines: Sequence[str], most: int) -> list[str]:
        """The translation of each line by greedy search, which ends it after `most` tokens."""

    def score(self, lines: Sequence[str], trg_ids: Sequence[list[int]]) -> list[list[float]]:
        """Log-probability of each token of given translations of the lines, EOS included."""


class Tolerance(NamedTuple):
    """Allowed differences. same_text: whether every translation must be the same.

    worst and mean: most that the log-probability of a token may differ, anywhere and on average.
    """

    same_text: bool
    worst: float
    mean: float


SAME = Tolerance(True, 0.0, 0.0)  # the same arithmetic
ROUNDED = Tolerance(True, 1e-3, 1e-3)  # fp32, but sums are taken in another order
FP16 = Tolerance(False, float("inf"), 0.01)
BF16 = Tolerance(False, float("inf"), 0.05)
QUANTISED = Tolerance(False, float("inf"), 0.2)


class Parity(NamedTuple):
    """Result of a comparison. n_same: lines that both translate alike by greedy search; mean and worst: difference of a
    token's log-probability; first: the first line that is not translated alike, and its two translations."""

    n_line: int
    n_same: int
    mean: float
    worst: float
    first: tuple[str, str, str] | None

    @property
    def text(self) -> str:
        return (
            f"{self.n_same:,} of {self.n_line:,} lines translated alike by greedy search; log-probability of a token: "
            f"{self.mean:.1e} apart on average, {self.worst:.1e} at most"
        )


class Ours:
    """A model of ours. Searched with nothing that other engines have not: what it writes may be no UTF-8."""

    def __init__(self, model: SearchModel, subwords: Subwords) -> None:
        self._model, self._subwords = model, subwords

    def ids(self, lines: Sequence[str], most: int) -> list[list[int]]:
        """Ids of the translation of each line by greedy search."""
        config = DecodeConfig(beam=1, max_len_a=0.0, max_len_b=most)
        searcher = BatchSearch(self._model, self._subwords, config, whole_characters=False)
        found: dict[int, list[int]] = {}
        for numbers, hypotheses in Translator(searcher, self._subwords, config).batches(
            self._subwords.src.encode(lines)
        ):
            found.update(zip(numbers.tolist(), (best[0].ids for best in hypotheses), strict=True))
        return [found[number] for number in range(len(lines))]

    def greedy(self, lines: Sequence[str], most: int) -> list[str]:
        """The translation of each line by greedy search, which ends it after `most` tokens."""
        return [self._subwords.trg.decode(ids) for ids in self.ids(lines, most)]

    def score(self, lines: Sequence[str], trg_ids: Sequence[list[int]]) -> list[list[float]]:
        """Log-probability of each token of given translations of the lines, EOS included."""
        return score_tokens(self._model, self._subwords.src.encode(lines), trg_ids)


def compare(
    model: SearchModel,
    subwords: Subwords,
    exported: Exported,
    lines: Sequence[str],
    tolerance: Tolerance,
    most: int = MOST_TOKENS,
) -> Parity:
    """Translate and score with both, on the CPU. most: tokens of a translation. Raises RunError, naming the first
    difference, if the two are not the same model, and DataError if every line is too long."""
    lines = [line for line, ids in zip(lines, subwords.src.encode(lines), strict=True) if len(ids) <= MAX_SRC_LEN]
    if not lines:
        raise DataError(f"every line to compare on has more than {MAX_SRC_LEN:,} subwords: name other ones.")
    ours = Ours(model, subwords)
    trg_ids = ours.ids(lines, most)
    texts = list(zip(lines, map(subwords.trg.decode, trg_ids), exported.greedy(lines, most), strict=True))
    different = [one for one in texts if one[1] != one[2]]
    if tolerance.same_text and different:
        line, a, b = different[0]
        raise RunError(f"the exported model is another one:\n  {line}\nis here\n  {a}\nand there\n  {b}")
    scores = zip(ours.score(lines, trg_ids), exported.score(lines, trg_ids), strict=True)
    apart = [[abs(a - b) for a, b in zip(*both, strict=True)] for both in scores]
    every, n_same = [one for row in apart for one in row], len(texts) - len(different)
    found = Parity(len(texts), n_same, sum(every) / len(every), max(every), different[0] if different else None)
    if not (found.worst <= tolerance.worst and found.mean <= tolerance.mean):  # so that a NaN is no success
        where = max(range(len(apart)), key=lambda n: max(apart[n]))
        raise RunError(
            f"the exported model is another one: {found.text}, which is too much. They differ most on\n  "
            f"{texts[where][1]}\nas a translation of\n  {lines[where]}"
        )
    return found
