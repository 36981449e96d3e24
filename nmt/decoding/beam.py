"""Beam search over ids: a loop over small functions that find continuations, end hypotheses, and keep the best.

Knows no text and nothing of a model but the contract in `nmt.models.base`.
Shapes: B sentences still searched, K beam, R = B·K rows, V vocabulary, C = 2·K candidates.

A sentence is done when `beam` of its hypotheses have ended and none that goes on is better, as it stands, than those to
be returned; when no unfinished one can still win; or when its longest have reached the cap, where EOS is forced.
A beam of one is greedy search, which looks no further than its first end.
"""

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nmt.decoding.candidates import Candidates, Characters, best_of, continuations, keep, mostly_done
from nmt.decoding.rules import Rules
from nmt.decoding.scorer import LengthPenalty, full_precision, length_divisor
from nmt.errors import MachineError
from nmt.models.base import SearchModel
from nmt.models.layers import Gaps, closing
from nmt.ops import best_columns, best_continuations, log_total
from nmt.recipe.decode_options import DecodeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSettings:
    """Symbols of the vocabulary, and options of search under their names in the section `decode` of the recipe."""

    bos: int
    eos: int
    pad: int
    length_penalty: LengthPenalty
    alpha: float
    n_real: int | None = None  # ids from here on only pad the vocabulary
    beam: int = 1  # hypotheses of a sentence that are alive together
    n_best: int = 1  # hypotheses of a sentence that come back, `beam` at most
    diversity: float = 0.0  # see `ranks`

    @classmethod
    def of(cls, config: DecodeConfig, **others: Any) -> "BeamSettings":
        """Take every option of a name here from the recipe. others: the symbols, and options that differ."""
        options = DecodeConfig.model_fields
        same = {one.name: getattr(config, one.name) for one in fields(cls) if one.name in options}
        return cls(**{**same, **others})

    def divisor(self, length: Tensor) -> Tensor:
        """Return the divisor of scores of hypotheses of some lengths, in tokens with EOS: see `length_divisor`."""
        return length_divisor(length, self.length_penalty, self.alpha)

    def impossible(self, n_column: int, characters: Characters | None = None) -> list[int]:
        """Ids of n_column that no translation has: control symbols and what pads the vocabulary; and those that may not
        follow between characters."""
        real = n_column if self.n_real is None else self.n_real
        return [self.pad, self.bos, *(characters.never() if characters else []), *range(real, n_column)]


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One translation: ids without BOS and EOS, and what it scores."""

    ids: list[int]
    score: float  # log-probability, that of EOS included: forced decoding of `ids` gives the same
    normalised: float  # score / length penalty: what hypotheses are ranked by
    finished: bool  # False: EOS was forced at the cap


class Ended(NamedTuple):
    """Hypotheses that end in this step: both are (B, K), one place for each parent."""

    score: Tensor  # with EOS; -inf where the parent goes on
    forced: Tensor  # True where only the cap ended it


class TopK(NamedTuple):
    """The best tokens after each row of logits, n of them, and what their log-probabilities follow from."""

    best: Tensor  # (R, n) logits, best first; in full precision, like all numbers here
    token: Tensor  # (R, n) their columns
    normaliser: Tensor  # (R,) what is taken from a logit
    eos: Tensor  # (R,) the logit of EOS


def topk_tokens(
    logits: Tensor, n: int, eos: int, never: Tensor, characters: Characters | None = None, state: Tensor | None = None
) -> TopK:
    """Of logits (R, V), which may be changed, the n best but `never`; the normaliser sees every column, like the loss.

    characters: let none break a character: `never` has those that may not follow between two; state: (R,) of each row.
    """
    eos_logit = full_precision(logits[:, eos])
    if characters is None or state is None or (state.is_cpu and not state.any()):
        return TopK(*best_continuations(logits, n, eos, never), eos_logit)
    # Nothing that may follow inside a character may follow between two, so the few rows inside choose apart.
    rows = state.nonzero().squeeze(1) if state.is_cpu else torch.arange(len(state), device=state.device)
    own, inside = logits[rows], (state[rows] > 0).unsqueeze(1)
    characters.forbid(own, state[rows])
    best, token, normaliser = best_continuations(logits, n, eos, never)
    value, column = own.topk(n)
    best = best.index_copy(0, rows, torch.where(inside, full_precision(value).to(best.dtype), best[rows]))
    token = token.index_copy(0, rows, torch.where(inside, column, token[rows]))
    return TopK(best, token, normaliser, eos_logit)


def ranks(found: Candidates, n: int, how: BeamSettings) -> Tensor:
    """Rank the n continuations of each hypothesis, (B, C). diversity: what one falls behind for every better one of the
    same hypothesis (Li et al. 2016, "A simple, fast diverse decoding algorithm")."""
    if not how.diversity:
        return found.score
    return found.score - how.diversity * torch.arange(n, device=found.score.device).repeat(found.score.size(1) // n)


def finish(
    found: Candidates, forced_score: Tensor | None, at_cap: Tensor | None, n_live: int, beam: int, eos: int
) -> Ended:
    """Find the hypotheses that end: those with EOS among their sentence's `beam` best, and at the cap all of them.

    forced_score: (B, n_live) with EOS, at_cap: (B,), or both None where no sentence is at its cap.
    """
    ends = (found.token[:, :beam] == eos) & (found.score[:, :beam] > -torch.inf)
    score = found.score.new_full((found.score.size(0), n_live), -torch.inf)
    # A parent has one EOS at most, so adding up is placing; the rest adds nothing to place 0.
    score.scatter_reduce_(1, found.parent[:, :beam], found.score[:, :beam].masked_fill(~ends, -torch.inf), "amax")
    if forced_score is None or at_cap is None:
        return Ended(score, torch.zeros_like(score, dtype=torch.bool))
    forced = at_cap.unsqueeze(1) & (score == -torch.inf)
    return Ended(torch.where(forced, forced_score, score), forced)


def is_over(
    n_ended: Tensor, worst: Tensor, best_live: Tensor, at_cap: Tensor | None, divisor: Tensor, beam: int
) -> Tensor:
    """Find the sentences that are done but for the shortcut: (B,). worst: the normalised score to beat; best_live: the
    score of the best hypothesis that goes on and could end; divisor: of its length if it ended next."""
    done = n_ended >= beam
    if beam > 1:
        done &= best_live / divisor <= worst
    return done if at_cap is None else done | at_cap


def not_finite() -> MachineError:
    """Make the error for a sentence without any translation."""
    return MachineError(
        "the model's scores are not finite, so nothing can be translated: the weights are damaged, or the numbers are "
        "too large for the precision in use; try another checkpoint, or fp32."
    )


@torch.inference_mode()
def search(
    model: SearchModel,
    src_seq: Tensor,
    how: BeamSettings,
    max_len: Tensor,
    *,
    rules: Rules | None = None,
    characters: Characters | None = None,
) -> list[list[Hypothesis]]:
    """The n_best translations of each sentence, best first; fewer only where fewer exist.

    src_seq: (B, S) ids as the model reads them; max_len: (B,) most tokens of a translation, EOS not counted.
    rules: where no hypothesis has all that is required, what has not comes back, unfinished.
    """
    assert 1 <= how.n_best <= how.beam
    n_sentence, device = src_seq.size(0), src_seq.device
    characters = characters.to(device) if characters else None
    finished = _Finished(n_sentence, how.n_best, device)
    state = model.start(src_seq)
    # The sentences that are still searched: one hypothesis of each before the first step.
    sentence, max_len = torch.arange(n_sentence, device=device), max_len.to(device)  # (B,) place in the call
    score = torch.zeros(n_sentence, 1, device=device)  # (B, K)
    last = torch.full((n_sentence, 1), how.bos, device=device)  # (B, K) the newest token
    prefix = src_seq.new_zeros(n_sentence, 1, 0)  # (B, K, t) all tokens, BOS not counted
    inside = torch.zeros_like(last)  # (B, K) where the last character stands: see `Characters`
    shortest_cap = int(max_len.min()) if n_sentence else 0
    never: Tensor | None = None
    n_token = 0
    while len(sentence):
        logits = model.step(last.flatten(), state)
        logits = logits if rules is None else full_precision(logits)
        if never is None:
            score = score.to(full_precision(logits).dtype)
            never = last.new_tensor(how.impossible(logits.size(-1), characters if rules is None else None))
        # Of one hypothesis no more than `beam` go on and one ends.
        n = min(how.beam + 1, logits.size(-1))
        if rules is None:
            topk = topk_tokens(logits, n, how.eos, never, characters, inside.flatten())
        else:
            eos_logit, normaliser = logits[:, how.eos].clone(), log_total(logits, how.eos)
            rules.forbid(logits.index_fill_(1, never, -torch.inf), prefix.flatten(0, 1))
            if characters is not None:
                characters.forbid(logits, inside.flatten())
            topk = TopK(*best_columns(logits, n), normaliser, eos_logit)
        at_cap = forced_score = None
        if n_token >= shortest_cap or rules is not None:
            at_cap, has_ended = max_len <= n_token, finished.n[sentence] > 0
            forced_score = score + (topk.eos - topk.normaliser).view_as(score)
            if rules is not None:
                at_cap, forced_score = rules.ends(logits, score, at_cap, forced_score, has_ended)
            elif characters is not None:
                forced_score = characters.ends(forced_score, score, inside, has_ended)
        found = continuations(score, topk.best, topk.token, topk.normaliser)
        rank = ranks(found, n, how)
        if rules is not None and rules.requires:
            found = rules.share_out(found, rank, logits, score, topk.normaliser, 2 * how.beam)
        else:
            found = best_of(found, rank, 2 * how.beam)
        ended = finish(found, forced_score, at_cap, score.size(1), how.beam, how.eos)
        n_token += 1
        finished.add(ended, sentence, prefix, how.divisor(max_len.new_tensor(n_token)))
        kept = keep(found, how.beam, how.eos)
        best_live, worst = kept.score.amax(1).double(), finished.worst[sentence]
        best_unfinished = best_live
        if rules is not None:
            rules.follow(kept.parent, kept.token)
            best_unfinished = kept.score.masked_fill(~rules.may_end(), -torch.inf).amax(1).double()
        next_divisor = how.divisor(max_len.new_tensor(n_token + 1))
        done = is_over(finished.n[sentence], worst, best_unfinished, at_cap, next_divisor, how.beam)
        # A log-probability only falls, so the best future is today's score under the mildest penalty.
        done |= worst >= best_live / how.divisor(max_len + 1)
        n_done = int(done.sum())
        if n_done == len(done):
            break
        row = torch.arange(len(sentence), device=device).unsqueeze(1) * score.size(1) + kept.parent  # that is continued
        prefix = torch.cat([prefix.flatten(0, 1)[row], kept.token.unsqueeze(2)], dim=2)
        score, last, inside = kept.score, kept.token, inside.gather(1, kept.parent)
        if characters is not None:
            inside = characters.follow(inside, last)
        leave = mostly_done(n_done, len(done))
        if leave:
            stay = closing(done)
            row, sentence, max_len, prefix = row[stay], sentence[stay], max_len[stay], prefix[stay]
            score, last, inside, shortest_cap = score[stay], last[stay], inside[stay], int(max_len.min())
            state.keep(Gaps.of(stay, device))
            if rules is not None:
                rules.keep(stay)
        elif n_done:
            # Still in the batch, no longer in the search: what is impossible never ends or wins.
            score = score.masked_fill(done.unsqueeze(1), -torch.inf)
        if how.beam > 1 or leave:  # greedy rows stay where they are
            state.reorder(row.flatten())
    return finished.best()


class _Finished:
    """Finished hypotheses of every sentence of the call."""

    def __init__(self, n_sentence: int, n_best: int, device: torch.device) -> None:
        self.n = torch.zeros(n_sentence, dtype=torch.long, device=device)
        self._top = torch.full((n_sentence, n_best), -torch.inf, dtype=torch.float64, device=device)
        self._found: list[list[Hypothesis]] = [[] for _ in range(n_sentence)]
        self._n_best = n_best

    @property
    def worst(self) -> Tensor:
        """(n_sentence,) the normalised score that a hypothesis has to beat to be printed."""
        return self._top[:, -1]

    def add(self, ended: Ended, sentence: Tensor, prefix: Tensor, divisor: Tensor) -> None:
        """ended: (B, K); sentence: (B,) places in the call; prefix: (B, K, t) the tokens before EOS."""
        where, hypothesis = (ended.score > -torch.inf).nonzero(as_tuple=True)
        if not len(where):
            return
        normalised = ended.score.double() / divisor
        self.n.index_add_(0, sentence, (normalised > -torch.inf).sum(1))
        self._top[sentence] = torch.cat([self._top[sentence], normalised], dim=1).topk(self._n_best).values
        for place, ids, score, rank, forced in zip(
            sentence[where].tolist(),
            prefix[where, hypothesis].tolist(),
            ended.score[where, hypothesis].tolist(),
            normalised[where, hypothesis].tolist(),
            ended.forced[where, hypothesis].tolist(),
            strict=True,
        ):
            self._found[place].append(Hypothesis(ids, score, rank, not forced))

    def best(self) -> list[list[Hypothesis]]:
        """The n best of each sentence, best first."""
        if not all(self._found):
            raise not_finite()
        # Stable: of two equally good hypotheses the one that ended first.
        return [sorted(found, key=lambda one: -one.normalised)[: self._n_best] for found in self._found]
