"""Beam search over ids: a loop over four small functions: log_total, extend, finish, keep.

Knows no text and nothing of a model but the contract in `nmt.models.base`.
Shapes: B sentences still searched, K beam, R = B·K rows, V vocabulary, C = 2·K candidates.

The search is defined without its shortcut: a sentence is done when `beam` of its hypotheses have ended and none that
goes on is better, as it stands, than those to be returned; or when its longest hypotheses have reached the cap, where
EOS is forced. The shortcut ends it earlier if no unfinished hypothesis can still win, and so never changes the answer.
A beam of one is greedy search, which looks no further than its first end.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from nmt.decoding.candidates import Candidates, best_of, continuations, fallen_behind, keep, top
from nmt.decoding.rules import Rules
from nmt.decoding.scorer import LengthPenalty, full_precision, length_divisor
from nmt.errors import MachineError
from nmt.models.base import SearchModel
from nmt.models.narrow import Narrow
from nmt.native import kernels
from nmt.native.choice import choose

# Taking finished sentences out copies every cache once, so it waits until it saves that much of a step.
WORTHWHILE_SHARE = 0.25


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


def impossible(pad: int, bos: int, n_real: int | None, n_column: int) -> list[int]:
    """Ids that no translation has: control symbols, and the columns from n_real on, which pad the vocabulary."""
    return [pad, bos, *range(n_column if n_real is None else n_real, n_column)]


class Likely(NamedTuple):
    """The best tokens after each row of logits, n of them, and what their log-probabilities follow from."""

    best: Tensor  # (R, n) logits, best first; in full precision, like all numbers here
    token: Tensor  # (R, n) their columns
    normaliser: Tensor  # (R,) what is taken from a logit
    eos: Tensor  # (R,) the logit of EOS


def likeliest(logits: Tensor, n: int, eos: int, never: Tensor) -> Likely:
    """Of logits (R, V), which may be changed, all columns but `never` taken into account. eos: its column.

    The normaliser sees every column, like the training loss: only producing some of them is forbidden.
    """
    if kernels.takes(logits):
        return Likely(*choose(logits, n, never), full_precision(logits[:, eos]))
    eos_logit, normaliser = full_precision(logits[:, eos]), log_total(logits, eos)
    best, token = top(logits.index_fill_(1, never, -torch.inf), n)
    return Likely(full_precision(best), token, normaliser, eos_logit)


def log_total(logits: Tensor, column: int) -> Tensor:
    """The logarithm of the sum of the exponentials of each row of (R, V), in full precision: log-softmax is the logit
    less this. (R,)

    column: one that is finite. By the log-softmax of that one, which is one pass on a CPU where `logsumexp` is several.
    """
    exact = torch.promote_types(logits.dtype, torch.float32)
    return logits[:, column] - logits.log_softmax(-1, dtype=exact)[:, column]


def finish(
    found: Candidates, forced_score: Tensor | None, at_cap: Tensor | None, n_live: int, beam: int, eos: int
) -> Ended:
    """Which hypotheses end: those with EOS among their sentence's `beam` best, and at the cap all of them.

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
    """Which sentences are done but for the shortcut: (B,).

    n_ended: how many of a sentence's hypotheses have ended; worst: the normalised score to beat; best_live: the score
    of the best hypothesis that goes on and could end; divisor: what it would be divided by if it ended next; at_cap:
    as in `finish`.
    """
    done = n_ended >= beam
    if beam > 1:
        done &= best_live / divisor <= worst
    return done if at_cap is None else done | at_cap


def not_finite() -> MachineError:
    """What to raise where a sentence has no translation at all."""
    return MachineError(
        "the model's scores are not finite, so nothing can be translated: the weights are damaged, or the numbers are "
        "too large for the precision in use; try another checkpoint, or fp32."
    )


@torch.inference_mode()
def search(
    model: SearchModel,
    src_seq: Tensor,
    *,
    bos: int,
    eos: int,
    pad: int,
    beam: int,
    length_penalty: LengthPenalty,
    alpha: float,
    max_len: Tensor,
    n_best: int = 1,
    n_real: int | None = None,
    early_stop: bool = True,
    rules: Rules | None = None,
    diversity: float = 0.0,
    shortlist: Callable[[Tensor], Narrow] | None = None,
) -> list[list[Hypothesis]]:
    """The n_best translations of each sentence, best first.

    src_seq: (B, S) ids as the model reads them; max_len: (B,) most tokens of a translation, EOS not counted.
    n_real: ids from here on only pad the vocabulary. early_stop=False searches on when nothing can win.
    rules: what a translation must and must not contain; where none that was found has all that is required, what has
    not comes back, unfinished. diversity: see `fallen_behind`. shortlist: from src_seq to the target ids among which
    a translation is looked for, EOS first and none that is impossible: not together with rules. Fewer than n_best come
    back only where fewer exist.
    """
    assert 1 <= n_best <= beam and (rules is None or shortlist is None)
    finished = _Finished(src_seq.size(0), n_best, src_seq.device)
    max_len = max_len.to(src_seq.device)
    sentence = torch.arange(src_seq.size(0), device=src_seq.device)  # (B,) place in src_seq
    state = model.start(src_seq)
    if shortlist is not None:
        model.narrow(state, shortlist(src_seq))
    last = torch.full_like(sentence, bos)
    score: Tensor | None = None  # (B, K) of the live hypotheses; one a sentence before the first step
    prefix = src_seq.new_zeros(src_seq.size(0), 1, 0)  # (B, K, t)
    never: Tensor | None = None
    n_token = 0
    shortest_cap = int(max_len.min()) if len(sentence) else 0
    while len(sentence):
        logits = model.step(last, state)
        n_column = logits.size(-1)
        if score is None or never is None:
            score = full_precision(logits).new_zeros(len(sentence), 1)
            never = last.new_tensor([n_column - 1] if shortlist else impossible(pad, bos, n_real, n_column))
        n_live = score.size(1)
        n_best_of_row = min(beam + 1, n_column)  # of one hypothesis no more than `beam` go on and one ends
        if rules is None:
            best, token, normaliser, eos_logit = likeliest(logits, n_best_of_row, 0 if shortlist else eos, never)
        else:
            logits = full_precision(logits)
            eos_logit, normaliser = logits[:, eos].clone(), log_total(logits, eos)
            rules.forbid(logits.index_fill_(1, never, -torch.inf), prefix.flatten(0, 1))
            best, token = top(logits, n_best_of_row)
        if (columns := state.columns) is not None:
            # What stands for all others is no token; it comes, impossible, where there are too few.
            listed = token.view(len(columns), -1).clamp(max=columns.size(1) - 1)
            token = columns.gather(1, listed).view_as(token)
        forced_score = at_cap = None
        if n_token >= shortest_cap or rules is not None:
            at_cap = max_len <= n_token
            forced_score = score + (eos_logit - normaliser).view_as(score)
            if rules is not None:
                at_cap, forced_score = rules.ends(logits, score, at_cap, forced_score, finished.n[sentence] > 0)
        found = continuations(score, best, token, normaliser)
        rank = fallen_behind(found, best.size(1), diversity)
        if rules is not None and rules.requires:
            found = rules.share_out(found, rank, logits, score, normaliser, 2 * beam)
        else:
            found = best_of(found, rank, 2 * beam)
        ended = finish(found, forced_score, at_cap, n_live, beam, eos)
        n_token += 1
        finished.add(ended, sentence, prefix, length_divisor(max_len.new_tensor(n_token), length_penalty, alpha))
        kept = keep(found, beam, eos)
        best_live, worst = kept.score.amax(1).double(), finished.worst[sentence]
        standing = best_live
        if rules is not None:
            rules.follow(kept.parent, kept.token)
            standing = kept.score.masked_fill(~rules.may_end(), -torch.inf).amax(1).double()
        next_divisor = length_divisor(max_len.new_tensor(n_token + 1), length_penalty, alpha)
        done = is_over(finished.n[sentence], worst, standing, at_cap, next_divisor, beam)
        if early_stop:
            # A log-probability only falls, so the best future is today's score under the mildest penalty.
            done |= worst >= best_live / length_divisor(max_len + 1, length_penalty, alpha)
        n_done = int(done.sum())
        if n_done == len(sentence):
            break
        row = torch.arange(len(sentence), device=sentence.device).unsqueeze(1) * n_live + kept.parent  # (B, K)
        prefix = torch.cat([prefix.flatten(0, 1)[row], kept.token.unsqueeze(2)], dim=2)
        score, last = kept.score, kept.token
        leave = n_done >= WORTHWHILE_SHARE * len(sentence)
        if leave:
            stay = (~done).nonzero().squeeze(1)
            state.keep(stay)
            sentence, max_len, prefix = sentence[stay], max_len[stay], prefix[stay]
            score, last, row = score[stay], last[stay], row[stay]
            shortest_cap = int(max_len.min())
            if rules is not None:
                rules.keep(stay)
        elif n_done:
            # Still in the batch, no longer in the search: what is impossible never ends or wins.
            score = score.masked_fill(done.unsqueeze(1), -torch.inf)
        if beam > 1 or leave:  # greedy rows stay where they are
            state.reorder(row.flatten())
        last = last.flatten()
    return finished.best()


class _Finished:
    """What has ended so far, of every sentence of the call."""

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
        if not all(self._found):
            raise not_finite()
        # Stable: of two equally good hypotheses the one that ended first.
        return [sorted(found, key=lambda one: -one.normalised)[: self._n_best] for found in self._found]
