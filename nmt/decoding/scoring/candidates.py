"""The best continuations of the hypotheses of a search: found, and those kept that go on.

Shapes: B sentences, K hypotheses of each, R = B·K rows, V vocabulary, C candidates.
"""

from typing import NamedTuple

import torch
from torch import Tensor

# Widths of the blocks in which `top` looks for candidates; vocabularies are multiples of 8.
BLOCK_WIDTHS = (64, 32, 16, 8)


class Candidates(NamedTuple):
    """The best continuations of each sentence, best first; all three are (B, C)."""

    score: Tensor  # log-probability up to and including the token; -inf where there is no candidate
    parent: Tensor  # hypothesis that is continued, 0 … K-1
    token: Tensor


def width_of_blocks(n_column: int, n: int) -> int | None:
    """How wide the blocks are in which `top` looks for the n best of so many columns; None: it looks at all columns."""
    return next((width for width in BLOCK_WIDTHS if n_column % width == 0 and n_column // width >= 2 * n), None)


def top(logits: Tensor, n: int, maxima: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The n best columns of each row: two (R, n), value and column. maxima: those of the blocks, if they are known.

    The n best of a row lie in the n blocks whose maxima are best: one pass over the logits for the maxima,
    and a sort of few values, which on a CPU takes a third of the time of `topk` over a whole vocabulary.
    """
    width = width_of_blocks(logits.size(-1), n)
    if width is None:
        best, column = logits.topk(n, dim=-1)
        return best, column
    blocks = logits.view(logits.size(0), -1, width)
    block = (blocks.amax(-1) if maxima is None else maxima).topk(n, dim=-1).indices  # (R, n)
    # Blocks are looked up among those of all rows: whole ones are copied faster than value by value.
    first = torch.arange(0, blocks[..., 0].numel(), blocks.size(1), device=logits.device).unsqueeze(1)
    inside = blocks.flatten(0, 1).index_select(0, (first + block).flatten()).view(-1, n * width)  # (R, n·width)
    best, place = inside.topk(n, dim=-1)
    return best, block.gather(1, place // width) * width + place % width


def continuations(score: Tensor, best: Tensor, token: Tensor, normaliser: Tensor) -> Candidates:
    """All of the best ways to continue each hypothesis of each sentence by one token, hypothesis by hypothesis.

    score: (B, K) of the live hypotheses; best, token: (B·K, n), the highest possible logits of each row, best first,
    and their columns; normaliser: (B·K,). A sentence's n best are among the n best of each of its rows, so neither an
    (R, V) log-softmax is needed, nor more of a row than what a beam keeps of all.
    """
    n_sentence, n_live = score.shape
    total = ((best - normaliser.unsqueeze(1)).view(n_sentence, n_live, -1) + score.unsqueeze(2)).flatten(1)
    parent = torch.arange(n_live, device=score.device).repeat_interleave(best.size(1))
    return Candidates(total, parent.expand_as(total), token.view(n_sentence, -1))


def fallen_behind(found: Candidates, n: int, diversity: float) -> Tensor:
    """What the n continuations of each hypothesis are ranked by, (B, C), so that more hypotheses have descendants: each
    falls behind for every better one of the same hypothesis (Li et al. 2016, "A simple, fast diverse decoding
    algorithm"). Scores stay what they are."""
    if not diversity:
        return found.score
    return found.score - diversity * torch.arange(n, device=found.score.device).repeat(found.score.size(1) // n)


def best_of(found: Candidates, rank: Tensor, n: int) -> Candidates:
    """The n of each sentence that are ranked highest, best first. rank: (B, C)"""
    # Stable: among equals the better parent comes first, whatever the batch looks like.
    place = rank.sort(dim=1, descending=True, stable=True).indices[:, :n]
    found = Candidates(*(part.gather(1, place) for part in found))
    if missing := n - place.size(1):
        fill = torch.nn.functional.pad
        found = Candidates(
            fill(found.score, (0, missing), value=-torch.inf),
            fill(found.parent, (0, missing)),
            fill(found.token, (0, missing)),
        )
    return found


def keep(found: Candidates, beam: int, eos: int) -> Candidates:
    """The `beam` best continuations that go on. Of 2·beam candidates at most `beam` end, so there are enough."""
    order = (found.token == eos).to(torch.uint8).sort(dim=1, stable=True).indices[:, :beam]
    kept = Candidates(*(part.gather(1, order) for part in found))
    return kept._replace(score=kept.score.masked_fill(kept.token == eos, -torch.inf))
