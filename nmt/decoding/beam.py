"""Beam search over ids: a loop over small functions that find continuations, end hypotheses, and keep the best.

Knows no text and nothing of a model but the contract in `nmt.models.base`.
Shapes: B sentences still searched, K beam, R = B·K rows, V vocabulary, C = 2·K candidates.

The search is defined without its shortcut: a sentence is done when `beam` of its hypotheses have ended and none that
goes on is better, as it stands, than those to be returned; or when its longest hypotheses have reached the cap, where
EOS is forced. The shortcut ends it earlier if no unfinished hypothesis can still win, and so never changes the answer.
A beam of one is greedy search, which looks no further than its first end.
"""

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nmt.decoding.candidates import (
    Candidates,
    Characters,
    LeavePolicy,
    best_of,
    continuations,
    keep,
)
from nmt.decoding.rules import Rules
from nmt.decoding.scorer import LengthPenalty, full_precision, length_divisor
from nmt.errors import MachineError
from nmt.models.base import DecoderState, SearchModel
from nmt.models.layers import Gaps, closing
from nmt.ops import best_columns, best_continuations, log_total
from nmt.recipe.decode_options import DecodeConfig

_IN_KERNELS = ("bos", "eos", "pad", "n_real", "length_penalty", "alpha", "beam", "n_best", "diversity")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """Symbols of the vocabulary, and the length penalty."""

    bos: int
    eos: int
    pad: int
    length_penalty: LengthPenalty
    alpha: float
    n_real: int | None = None  # ids from here on only pad the vocabulary

    def divisor(self, length: Tensor) -> Tensor:
        """Return the divisor of scores of hypotheses of some lengths, in tokens with EOS: see `length_divisor`."""
        return length_divisor(length, self.length_penalty, self.alpha)


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSettings(SearchSettings):
    """Options of beam search, under their names in the section `decode` of the recipe."""

    beam: int  # hypotheses of a sentence that are alive together
    n_best: int = 1  # hypotheses of a sentence that come back, `beam` at most
    diversity: float = 0.0  # see `ranks`

    @classmethod
    def of(cls, config: DecodeConfig, **others: Any) -> "BeamSettings":
        """Take every option of a name here from the recipe. others: the symbols, and options that differ."""
        options = DecodeConfig.model_fields
        same = {one.name: getattr(config, one.name) for one in fields(cls) if one.name in options}
        return cls(**{**same, **others})

    @property
    def in_kernels(self) -> bool:
        """True where the kernels of the fixed search know every option that is set."""
        return all(one.name in _IN_KERNELS or getattr(self, one.name) == one.default for one in fields(self))


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


def impossible(
    pad: int, bos: int, n_real: int | None, n_column: int, characters: Characters | None = None
) -> list[int]:
    """Ids that no translation has: control symbols, and the columns from n_real on, which pad the vocabulary; and those
    that may not follow between characters."""
    never = characters.never.tolist() if characters else []
    return [pad, bos, *never, *range(n_column if n_real is None else n_real, n_column)]


class TopK(NamedTuple):
    """The best tokens after each row of logits, n of them, and what their log-probabilities follow from."""

    best: Tensor  # (R, n) logits, best first; in full precision, like all numbers here
    token: Tensor  # (R, n) their columns
    normaliser: Tensor  # (R,) what is taken from a logit
    eos: Tensor  # (R,) the logit of EOS


def topk_tokens(logits: Tensor, n: int, eos: int, never: Tensor) -> TopK:
    """Of logits (R, V), which may be changed, all columns but `never` taken into account. eos: its column.

    The normaliser sees every column, like the training loss: only producing some of them is forbidden.
    """
    eos_logit = full_precision(logits[:, eos])
    return TopK(*best_continuations(logits, n, eos, never), eos_logit)


def topk_in_characters(
    logits: Tensor, n: int, eos: int, never: Tensor, characters: Characters | None, state: Tensor
) -> TopK:
    """The likeliest tokens of which none breaks a character. never: has those that may not follow between characters;
    state: (R,) those of the rows."""
    # No token that may follow inside a character may follow between two, so the few rows inside have a choice apart.
    if characters is None or (state.device.type == "cpu" and not state.any()):
        return topk_tokens(logits, n, eos, never)
    best, token = characters.best_inside(logits, state, n)
    topk, inside = topk_tokens(logits, n, eos, never), (state > 0).unsqueeze(1)
    best = torch.where(inside, full_precision(best).to(topk.best.dtype), topk.best)
    return topk._replace(best=best, token=torch.where(inside, token, topk.token))


def ranks(found: Candidates, n: int, how: BeamSettings) -> Tensor:
    """Rank the n continuations of each hypothesis, (B, C), all of them beside each other; scores stay as they are.

    diversity: a continuation falls behind for every better one of the same hypothesis, so that more hypotheses have
    descendants (Li et al. 2016, "A simple, fast diverse decoding algorithm").
    """
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
    """Find the sentences that are done but for the shortcut: (B,).

    n_ended: how many of a sentence's hypotheses have ended; worst: the normalised score to beat; best_live: the score
    of the best hypothesis that goes on and could end; divisor: what it would be divided by if it ended next; at_cap:
    as in `finish`.
    """
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
    early_stop: bool = True,
    rules: Rules | None = None,
    characters: Characters | None = None,
) -> list[list[Hypothesis]]:
    """The n_best translations of each sentence, best first.

    src_seq: (B, S) ids as the model reads them; max_len: (B,) most tokens of a translation, EOS not counted.
    early_stop=False searches on when nothing can win. rules: what a translation must and must not contain; where none
    that was found has all that is required, what has not comes back, unfinished. characters: of the target vocabulary,
    which translations are whole in. Fewer than n_best come back only where fewer exist.
    """
    assert 1 <= how.n_best <= how.beam
    finished = _Finished(src_seq.size(0), how.n_best, src_seq.device)
    live = _Live(src_seq, max_len, how.bos)
    state = model.start(src_seq)
    never: Tensor | None = None
    characters = characters.to(src_seq.device) if characters else None
    n_token, leave_policy = 0, LeavePolicy()
    while len(live.sentence):
        logits = model.step(live.last.flatten(), state)
        if never is None:
            live.score = live.score.to(full_precision(logits).dtype)
            never_between = None if rules is not None else characters
            never = live.last.new_tensor(impossible(how.pad, how.bos, how.n_real, logits.size(-1), never_between))
        if rules is not None:
            logits = full_precision(logits)
        topk = _likeliest_ids(logits, how, never, rules, live, characters)
        at_cap = forced_score = None
        if n_token >= live.shortest_cap or rules is not None:
            at_cap = live.max_len <= n_token
            forced_score = live.score + (topk.eos - topk.normaliser).view_as(live.score)
            if rules is not None:
                has_ended = finished.n[live.sentence] > 0
                at_cap, forced_score = rules.ends(logits, live.score, at_cap, forced_score, has_ended)
            elif characters is not None:
                has_ended = finished.n[live.sentence] > 0
                forced_score = characters.ends(forced_score, live.score, live.state, has_ended)
        found = continuations(live.score, topk.best, topk.token, topk.normaliser)
        rank = ranks(found, topk.best.size(1), how)
        if rules is not None and rules.requires:
            found = rules.share_out(found, rank, logits, live.score, topk.normaliser, 2 * how.beam)
        else:
            found = best_of(found, rank, 2 * how.beam)
        ended = finish(found, forced_score, at_cap, live.score.size(1), how.beam, how.eos)
        n_token += 1
        finished.add(ended, live.sentence, live.prefix, how.divisor(live.max_len.new_tensor(n_token)))
        kept = keep(found, how.beam, how.eos)
        best_live, worst = kept.score.amax(1).double(), finished.worst[live.sentence]
        best_unfinished = best_live
        if rules is not None:
            rules.follow(kept.parent, kept.token)
            best_unfinished = kept.score.masked_fill(~rules.may_end(), -torch.inf).amax(1).double()
        next_divisor = how.divisor(live.max_len.new_tensor(n_token + 1))
        done = is_over(finished.n[live.sentence], worst, best_unfinished, at_cap, next_divisor, how.beam)
        if early_stop:
            # A log-probability only falls, so the best future is today's score under the mildest penalty.
            done |= worst >= best_live / how.divisor(live.max_len + 1)
        n_done = int(done.sum())
        if n_done == len(done):
            break
        row = live.follow(kept, characters)
        leave = leave_policy.pays(n_done, len(done))
        if leave:
            stay = closing(done)
            row = row[stay]
            _keep(stay, live, state, rules)
        elif n_done:
            # Still in the batch, no longer in the search: what is impossible never ends or wins.
            live.score = live.score.masked_fill(done.unsqueeze(1), -torch.inf)
        if how.beam > 1 or leave:  # greedy rows stay where they are
            state.reorder(row.flatten())
    return finished.best()


def _likeliest_ids(
    logits: Tensor,
    how: BeamSettings,
    never: Tensor,
    rules: Rules | None,
    live: "_Live",
    characters: Characters | None,
) -> TopK:
    """The best target ids after each row of logits (R, V), which are changed, as many as can be of use: of one
    hypothesis no more than `beam` go on and one ends.

    live: the hypotheses, whose tokens rules look at.
    """
    n = min(how.beam + 1, logits.size(-1))
    if rules is not None:
        eos_logit, normaliser = logits[:, how.eos].clone(), log_total(logits, how.eos)
        rules.forbid(logits.index_fill_(1, never, -torch.inf), live.prefix.flatten(0, 1))
        if characters is not None:
            characters.forbid(logits, live.state.flatten())
        return TopK(*best_columns(logits, n), normaliser, eos_logit)
    return topk_in_characters(logits, n, how.eos, never, characters, live.state.flatten())


def _keep(stay: Tensor, live: "_Live", state: DecoderState, rules: Rules | None) -> None:
    """Let the other sentences leave the batch. stay: (B',) the ones that do not."""
    live.keep(stay)
    state.keep(Gaps.of(stay, stay.device))
    if rules is not None:
        rules.keep(stay)


class _Live:
    """The hypotheses that go on, of the sentences that are still searched: one of each before the first step."""

    def __init__(self, src_seq: Tensor, max_len: Tensor, bos: int) -> None:
        n_sentence, device = src_seq.size(0), src_seq.device
        self.sentence = torch.arange(n_sentence, device=device)  # (B,) place in the call
        self.max_len = max_len.to(device)  # (B,)
        self.score = torch.zeros(n_sentence, 1, device=device)  # (B, K)
        self.last = torch.full((n_sentence, 1), bos, device=device)  # (B, K) the newest token
        self.prefix = src_seq.new_zeros(n_sentence, 1, 0)  # (B, K, t) all tokens, BOS not counted
        self.state = torch.zeros_like(self.last)  # (B, K) where the last character stands: see `Characters`
        self.shortest_cap = int(max_len.min()) if n_sentence else 0

    def follow(self, kept: Candidates, characters: Characters | None) -> Tensor:
        """Go on with these continuations: (B, K) the rows that they continue."""
        first = torch.arange(len(self.sentence), device=self.sentence.device).unsqueeze(1) * self.score.size(1)
        row = first + kept.parent
        self.prefix = torch.cat([self.prefix.flatten(0, 1)[row], kept.token.unsqueeze(2)], dim=2)
        self.score, self.last = kept.score, kept.token
        self.state = self.state.gather(1, kept.parent)
        if characters is not None:
            self.state = characters.follow(self.state, kept.token)
        return row

    def keep(self, stay: Tensor) -> None:
        """Let sentences leave. stay: (B',) the ones that do not."""
        self.sentence, self.max_len, self.prefix = self.sentence[stay], self.max_len[stay], self.prefix[stay]
        self.score, self.last, self.state = self.score[stay], self.last[stay], self.state[stay]
        self.shortest_cap = int(self.max_len.min())


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
        if not all(self._found):
            raise not_finite()
        # Stable: of two equally good hypotheses the one that ended first.
        return [sorted(found, key=lambda one: -one.normalised)[: self._n_best] for found in self._found]
