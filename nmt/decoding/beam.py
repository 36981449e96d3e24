"""Beam search over ids. Knows no text and nothing of a model but the contract in `nmt.models.base`.

Shapes: B sentences still searched, K beam, R = B·K rows, V vocabulary, C = 2·K candidates.

A sentence is done when `beam` of its hypotheses have ended and none that goes on is better, as it stands, than those to
be returned; when no unfinished one can still win; or when its longest have reached the cap, where EOS is forced.
A beam of one is greedy search, which looks no further than its first end.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.data.subwords import BOS, EOS, PAD
from nmt.decoding.candidates import Candidates, Characters, best_of, mostly_done
from nmt.decoding.rules import Rules
from nmt.decoding.scorer import full_precision
from nmt.errors import MachineError
from nmt.models.base import SearchModel
from nmt.models.layers import Gaps, closing
from nmt.ops import best_columns, best_continuations, log_total


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSettings:
    """Options of search, under their names in the section `decode` of the recipe."""

    length_penalty: Literal["wu", "average", "none"] = "wu"
    alpha: float = 1.0
    n_real: int | None = None  # ids from here on only pad the vocabulary
    beam: int = 1  # hypotheses of a sentence that are alive together
    n_best: int = 1  # hypotheses of a sentence that come back, `beam` at most

    def divisor(self, length: Tensor) -> Tensor:
        """Return the divisor of log-probabilities, by which hypotheses of some lengths, in tokens with EOS, compare. It
        never falls as a hypothesis grows, which the bound of `end_of_step` needs."""
        real = length.to(torch.float64)
        if self.length_penalty == "wu":
            return ((5.0 + real) / 6.0) ** self.alpha
        return real**self.alpha if self.length_penalty == "average" else torch.ones_like(real)

    def impossible(self, n_column: int, characters: Characters | None = None) -> list[int]:
        """Ids of n_column that no translation has: control symbols and what pads the vocabulary; and those that may not
        follow between characters."""
        real = n_column if self.n_real is None else self.n_real
        return [PAD, BOS, *(characters.never() if characters else []), *range(real, n_column)]


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One translation: ids without BOS and EOS, and what it scores."""

    ids: list[int]
    score: float  # log-probability, that of EOS included: forced decoding of `ids` gives the same
    normalised: float  # score / length penalty: what hypotheses are ranked by
    finished: bool  # False: EOS was forced at the cap


class TopK(NamedTuple):
    """The best tokens after each row of logits, n of them, and what their log-probabilities follow from."""

    best: Tensor  # (R, n) logits, best first; in full precision, like all numbers here
    token: Tensor  # (R, n) their columns
    normaliser: Tensor  # (R,) what is taken from a logit
    eos: Tensor  # (R,) the logit of EOS


def topk_tokens(
    logits: Tensor, n: int, never: Tensor, characters: Characters | None = None, state: Tensor | None = None
) -> TopK:
    """Of logits (R, V), which may be changed, the n best but `never`; the normaliser sees every column, like the loss.

    characters: let none break a character: `never` has those that may not follow between two; state: (R,) of each row.
    """
    eos_logit = full_precision(logits[:, EOS])
    if characters is None or state is None or (state.is_cpu and not state.any()):
        return TopK(*best_continuations(logits, n, EOS, never), eos_logit)
    # Nothing that may follow inside a character may follow between two, so the few rows inside choose apart.
    rows = state.nonzero().squeeze(1) if state.is_cpu else torch.arange(len(state), device=state.device)
    own, inside = logits[rows], (state[rows] > 0).unsqueeze(1)
    characters.forbid(own, state[rows])
    best, token, normaliser = best_continuations(logits, n, EOS, never)
    value, column = own.topk(n)
    best = best.index_copy(0, rows, torch.where(inside, full_precision(value).to(best.dtype), best[rows]))
    token = token.index_copy(0, rows, torch.where(inside, column, token[rows]))
    return TopK(best, token, normaliser, eos_logit)


def first_table(how: BeamSettings, max_len: Tensor, score: Tensor) -> dict[str, Tensor]:
    """All that is known of each sentence of a search, by name, before its first step.

    max_len: (B,) most tokens, EOS not counted; score: (B, K) log-probability of each hypothesis. best: the normalised
    scores of the best that ended; state: where each hypothesis stands in a character.
    """
    return {
        "max_len": max_len,
        "score": score,
        "last_divisor": how.divisor(max_len + 1),
        "n_ended": torch.zeros_like(max_len),
        "best": torch.full((len(max_len), how.n_best), -torch.inf, dtype=torch.float64, device=max_len.device),
        "done": torch.zeros_like(max_len, dtype=torch.bool),
        "state": torch.zeros_like(score, dtype=torch.long),
    }


def end_of_step(
    of: Mapping[str, Tensor],
    topk: TopK,
    how: BeamSettings,
    n_token: int | Tensor,
    divisor: Tensor,
    next_divisor: Tensor,
    characters: Characters | None,
    logits: Tensor,
    rules: Rules | None = None,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Choose among the continuations of each sentence: what is noted of the step, and what it changes of the table.

    of: see `first_table`; n_token: tokens of all hypotheses before. divisor, next_divisor: of hypotheses that end in
    this step and in the next. logits: (R, V), which the rules look at. Notes: see `first_notes`; (B, K) score with EOS
    of each old hypothesis that ends here, -inf where it goes on, and (B, beam) of those that are kept.
    """
    score, at_cap = of["score"], of["max_len"] <= n_token
    can_end = of["state"] == 0
    if rules is not None:
        can_end = (logits[:, EOS] != -torch.inf).view_as(score)
        # Where nothing may follow, all end as at the cap.
        at_cap |= (logits.amax(-1).view_as(score) + score == -torch.inf).all(1)
    # But none that must not end, if another one of the sentence has ended, or ends now, as it should.
    ends_well = (of["n_ended"] > 0) | (can_end & (score > -torch.inf)).any(1)
    forced_score = score + (topk.eos - topk.normaliser).view_as(score)
    forced_score = forced_score.masked_fill(~can_end & ends_well.unsqueeze(1), -torch.inf)
    # All of the best ways to continue each hypothesis, one after another: a sentence's n best are among the n best of
    # each of its rows, so no (R, V) log-softmax is needed.
    total = (topk.best - topk.normaliser.unsqueeze(1)).view(*score.shape, -1) + score.unsqueeze(2)
    parent = torch.arange(score.size(1), device=score.device).repeat_interleave(topk.best.size(1))
    found = Candidates(total.flatten(1), parent.expand(len(score), -1), topk.token.view(len(score), -1))
    if rules is not None and rules.required:
        found = rules.share_out(found, logits, score, topk.normaliser, 2 * how.beam)
    else:
        found = best_of(found, 2 * how.beam)

    # Those end that have EOS among their sentence's `beam` best, and at the cap all of them.
    first = Candidates(*(part[:, : how.beam] for part in found))
    ended = torch.full_like(score, -torch.inf)
    # A parent has one EOS at most, so adding up is placing; the rest adds nothing to place 0.
    ended.scatter_reduce_(1, first.parent, first.score.masked_fill(first.token != EOS, -torch.inf), "amax")
    forced = at_cap.unsqueeze(1) & (ended == -torch.inf)
    ended = torch.where(forced, forced_score, ended)
    # Of 2·beam candidates at most `beam` end, so enough go on.
    order = (found.token == EOS).to(torch.uint8).sort(dim=1, stable=True).indices[:, : how.beam]
    kept = Candidates(*(part.gather(1, order) for part in found))
    kept = kept._replace(score=kept.score.masked_fill(kept.token == EOS, -torch.inf))

    n_ended = of["n_ended"] + (ended > -torch.inf).sum(1)
    best = torch.cat([of["best"], ended.double() / divisor], 1).topk(how.n_best).values
    worst, best_live = best[:, -1], kept.score.amax(1).double()
    could_end = best_live
    if rules is not None:
        rules.follow(kept.parent, kept.token)
        could_end = kept.score.masked_fill(~rules.may_end(), -torch.inf).amax(1).double()
    done = n_ended >= how.beam
    if how.beam > 1:
        done &= could_end / next_divisor <= worst
    # A log-probability only falls, so the best future is today's score under the mildest penalty.
    done |= at_cap | (worst >= best_live / of["last_divisor"])
    state = of["state"].gather(1, kept.parent)
    changes = {
        # Where a sentence is done, and still in the batch, what is impossible never ends or wins.
        "score": kept.score.masked_fill(done.unsqueeze(1), -torch.inf),
        "n_ended": n_ended,
        "best": best,
        "done": done,
        "state": characters.follow(state, kept.token) if characters is not None else state,
    }
    return {"token": kept.token, "parent": kept.parent, "ended": ended, "forced": forced}, changes


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
    if not n_sentence:
        return []
    characters = characters and Characters(characters.after.to(device))
    state = model.start(src_seq)
    sentence = torch.arange(n_sentence, device=device)  # (B,) those that are still searched
    # One hypothesis of each before the first step.
    score = torch.zeros(n_sentence, 1, dtype=score_type(model), device=device)
    of = first_table(how, max_len.to(device), score)
    last = torch.full((n_sentence, 1), BOS, device=device)  # (B, K) the newest token
    steps, divisors = list[tuple[Tensor, dict[str, Tensor]]](), list[float]()  # of which sentences, and their notes
    never: Tensor | None = None
    while True:
        logits, n_token = model.step(last.flatten(), state), len(steps)
        if never is None:
            never = last.new_tensor(how.impossible(logits.size(-1), characters if rules is None else None))
        # Of one hypothesis no more than `beam` go on and one ends.
        n = min(how.beam + 1, logits.size(-1))
        if rules is None:
            topk = topk_tokens(logits, n, never, characters, of["state"].flatten())
        else:
            logits = full_precision(logits)
            eos_logit, normaliser = logits[:, EOS].clone(), log_total(logits, EOS)
            rules.forbid(logits.index_fill_(1, never, -torch.inf))
            if characters is not None:
                characters.forbid(logits, of["state"].flatten())
            topk = TopK(*best_columns(logits, n), normaliser, eos_logit)
        divisor, next_divisor = (how.divisor(sentence.new_tensor(n_token + more)) for more in (1, 2))
        noted, changes = end_of_step(of, topk, how, n_token, divisor, next_divisor, characters, logits, rules)
        of |= changes
        steps.append((sentence, noted))
        divisors.append(float(divisor))
        n_done = int(of["done"].sum())
        if n_done == len(sentence):
            break
        # The rows that are continued.
        row = torch.arange(len(sentence), device=device).unsqueeze(1) * last.size(1) + noted["parent"]
        last, leave = noted["token"], mostly_done(n_done, len(sentence))
        if leave:
            stay = closing(of["done"])
            of = {name: value[stay] for name, value in of.items()}
            row, sentence, last = row[stay], sentence[stay], last[stay]
            state.keep(Gaps.of(stay, device))
            if rules is not None:
                rules.keep(stay)
        if how.beam > 1 or leave:  # greedy rows stay where they are
            state.reorder(row.flatten())
    notes = first_notes(n_sentence, len(steps), how.beam, score)
    for n_token, (sentence, noted) in enumerate(steps):
        for name, what in noted.items():
            notes[name][sentence, n_token, : what.size(1)] = what
    told = {name: note.cpu().numpy() for name, note in notes.items()}
    found = traced(**told, divisors=np.array(divisors), n=how.n_best)
    if not all(found):
        raise not_finite()
    return found


def score_type(model: SearchModel) -> torch.dtype:
    """The type of the scores of a search: that of the model, and fp32 of half precision."""
    return torch.promote_types(next(model.parameters()).dtype, torch.float32)


def first_notes(n_sentence: int, room: int, beam: int, score: Tensor) -> dict[str, Tensor]:
    """Room for what steps find, by name, (B, T, K): token and parent of those that go on; score of those that end, and
    whether only the cap ended them. score: whose type and device the scores have."""
    shape = (n_sentence, room, beam)
    kinds = {"token": torch.long, "parent": torch.long, "ended": score.dtype, "forced": torch.bool}
    found = {name: torch.zeros(shape, dtype=dtype, device=score.device) for name, dtype in kinds.items()}
    found["ended"].fill_(-torch.inf)
    return found


def traced(
    token: NDArray[np.int64],
    parent: NDArray[np.int64],
    ended: NDArray[np.floating],
    forced: NDArray[np.bool_],
    divisors: NDArray[np.float64],
    n: int,
) -> list[list[Hypothesis]]:
    """The n best hypotheses of each sentence, best first, of the notes of each step, see `first_notes`.

    divisors: (T,) of scores of hypotheses that end in each step.
    """
    n_sentence, n_step, beam = ended.shape
    rank = (ended.astype(np.float64) / divisors[:, np.newaxis]).reshape(n_sentence, -1)
    # Stable: of two equally good hypotheses the one that ended first.
    place = np.argsort(-rank, axis=1, kind="stable")[:, :n]
    there = np.take_along_axis(rank, place, 1) > -np.inf
    sentence, place = there.nonzero()[0], place[there]
    end, row = np.divmod(place, beam)
    score, cut = ended[sentence, end, row], forced[sentence, end, row]
    ids = np.zeros((len(place), n_step), dtype=np.int64)
    for step in range(int(end.max(initial=0)) - 1, -1, -1):
        ids[:, step] = token[sentence, step, row]
        row = np.where(step < end, parent[sentence, step, row], row)
    found: list[list[Hypothesis]] = [[] for _ in range(n_sentence)]
    told = zip(sentence.tolist(), ids, end, score.tolist(), rank[sentence, place].tolist(), cut.tolist(), strict=True)
    for number, tokens, length, total, normalised, was_cut in told:
        found[number].append(Hypothesis(tokens[:length].tolist(), total, normalised, not was_cut))
    return found
