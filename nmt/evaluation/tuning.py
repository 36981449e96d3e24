"""Many sets of translations of the same lines: scored fast, and compared in pairs.

The scores are sacreBLEU's own. A corpus score is made of counts that add up over lines, so each translation of a line
is counted once, however many sets it is in.
"""

from collections.abc import Sequence
from typing import Any

from sacrebleu.significance import PairedTest, Result

from nmt.evaluation.metrics import IN_NFC, form_note, metric_of


class ScoreSets:
    """Scores sets of translations against one reference, one metric (bleu or chrf) after the same counts."""

    def __init__(self, references: Sequence[str], name: str, trg_lang: str = "") -> None:
        self._references, self._metric = references, metric_of(name, trg_lang)
        self._counts: list[dict[str, Any]] = [{} for _ in references]

    def score(self, hypotheses: Sequence[str]) -> Any:
        """sacreBLEU's score of one translation for each reference: `.score`, and for BLEU `.sys_len` and `.ref_len`."""
        assert len(hypotheses) == len(self._references)
        new = [n for n, text in enumerate(hypotheses) if text not in self._counts[n]]
        if new:
            # These two steps are what sacreBLEU's own tests of significance are made of.
            texts, references = [hypotheses[n] for n in new], [self._references[n] for n in new]
            for n, counts in zip(new, self._metric._extract_corpus_statistics(texts, [references]), strict=True):
                self._counts[n][hypotheses[n]] = counts
        return self._metric._aggregate_and_compute(
            [counts[text] for counts, text in zip(self._counts, hypotheses, strict=True)]
        )

    @property
    def signature(self) -> str:
        """How sacreBLEU has scored, known once it has."""
        return str(self._metric.get_signature().format()) + (IN_NFC if form_note(self._references) else "")


def p_value(
    one: Sequence[str], other: Sequence[str], references: Sequence[str], name: str, trg_lang: str = ""
) -> float:
    """How likely so large a difference is by chance of the lines, by sacreBLEU's paired bootstrap (Koehn 2004)."""
    systems: list[tuple[str, Sequence[str]]] = [("one", list(one)), ("other", list(other))]
    test = PairedTest(systems, {name: metric_of(name, trg_lang)}, [list(references)], test_type="bs")
    (found,) = (results for key, results in test()[1].items() if key != "System")
    result = found[1]  # the first is the one that the others are compared with
    assert isinstance(result, Result) and result.p_value is not None
    return float(result.p_value)
