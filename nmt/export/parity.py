"""Whether an exported model is the model: both translate the same lines, and both score the same translations."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt.data.subwords import BOS, PAD, Subwords
from nmt.decoding.scorer import score_tokens
from nmt.decoding.translator import Translator
from nmt.errors import RunError
from nmt.export.ctranslate2 import entries, library
from nmt.models.base import SearchModel
from nmt.recipe.decode_options import DecodeConfig

# Between log-probabilities of a token: fp32 sums in another order, and what quantised weights may be off by on average.
_EXACT, _ROUGH = 1e-3, 0.2
_MOST_TOKENS = 200  # of a greedy translation


@dataclass(frozen=True)
class Parity:
    """What was found. n_same: lines that both translate alike by greedy search.

    mean and worst: difference of a token's log-probability. first: the first line that is not, and the two
    translations of it.
    """

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


def compare(model: SearchModel, subwords: Subwords, folder: Path, lines: Sequence[str], *, exact: bool) -> Parity:
    """Translate and score with both, on the CPU. exact: whether the export kept fp32.

    Raises RunError, naming the first difference, if the two are not the same model.
    """
    src_ids = subwords.src.encode(lines)
    ours = _greedy(model, subwords, src_ids)
    theirs, scores = _exported(subwords, folder, src_ids, ours)
    texts = [(subwords.trg.decode(a), subwords.trg.decode(b)) for a, b in zip(ours, theirs, strict=True)]
    different = [(line, a, b) for line, (a, b) in zip(lines, texts, strict=True) if a != b]
    told = score_tokens(model, src_ids, ours)
    apart = [abs(a - b) for one, two in zip(told, scores, strict=True) for a, b in zip(one, two, strict=True)]
    first = different[0] if different else None
    found = Parity(len(texts), len(texts) - len(different), sum(apart) / len(apart), max(apart), first)
    if exact and found.first:
        line, a, b = found.first
        raise RunError(f"the exported model is another one:\n  {line}\nis here\n  {a}\nand there\n  {b}")
    if found.worst > _EXACT if exact else found.mean > _ROUGH:
        raise RunError(f"the exported model is another one: {found.text}.")
    return found


def _greedy(model: SearchModel, subwords: Subwords, src_ids: list[list[int]]) -> list[list[int]]:
    translator = Translator(model, subwords, DecodeConfig(beam=1, max_len_a=0.0, max_len_b=_MOST_TOKENS))
    found: dict[int, list[int]] = {}
    for numbers, hypotheses in translator.batches(src_ids):
        found.update(zip(numbers.tolist(), (best[0].ids for best in hypotheses), strict=True))
    return [found[number] for number in range(len(src_ids))]


def _exported(
    subwords: Subwords, folder: Path, src_ids: list[list[int]], trg_ids: list[list[int]]
) -> tuple[list[list[int]], list[list[float]]]:
    """Greedy translations by the exported model, and its log-probabilities of trg_ids."""
    src, trg = entries(subwords.src), entries(subwords.trg)
    number = {entry: i for i, entry in enumerate(trg)}
    translator: Any = library().Translator(str(folder), device="cpu")
    source = [[src[i] for i in ids] for ids in src_ids]
    never = [[trg[i]] for i in (PAD, BOS, *range(subwords.trg.size, len(trg)))]
    found = translator.translate_batch(
        source, beam_size=1, max_decoding_length=_MOST_TOKENS, suppress_sequences=never, max_batch_size=32
    )
    scored = translator.score_batch(source, [[trg[i] for i in ids] for ids in trg_ids], max_batch_size=32)
    return [[number[entry] for entry in one.hypotheses[0]] for one in found], [one.log_probs for one in scored]
