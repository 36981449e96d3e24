"""Beam search and sampling over ids. They know a model only by the contract in `nmt.models.base`, and never see text.

Shapes: B sentences still searched, K beam, R = B·K rows, V vocabulary, C = 2·K candidates.

In beam search a sentence is done in one of three cases. `beam` of its hypotheses have ended, and no live one scores
better now than those to be returned. No live hypothesis can still win. Or the length has reached the cap, where EOS is
forced. A beam of one is greedy search, which stops at its first EOS.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from nmt.data.subwords import BOS, EOS, PAD
from nmt.decoding.candidates import FORBIDDEN, Candidates, Characters, best_of, should_shrink
from nmt.decoding.rules import Rules
from nmt.decoding.scorer import full_precision
from nmt.errors import MachineError
from nmt.models.base import SearchModel
from nmt.models.layers import Gaps
from nmt.ops import best_columns, best_continuations, log_total


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSettings:
    """Options of search, named as in the section `decode` of the recipe."""

    length_penalty: Literal["wu", "average", "none"] = "wu"
    alpha: float = 1.0
    n_real: int | None = None  # ids from here on only pad the vocabulary
    beam: int = 1  # live hypotheses of a sentence
    n_best: int = 1  # hypotheses to return for a sentence, at most `beam`
    # None: any bytes may follow. Not compared: `FixedSearch` has recordings by their settings, for one vocabulary.
    characters: Characters | None = field(default=None, compare=False)

    def divisor(self, length: Tensor) -> Tensor:
        """Return the length penalty, the divisor of log-probabilities. length: in tokens, with EOS. The penalty never
        falls as a hypothesis grows: the bound in `end_of_step` needs that."""
        n_token = length.to(torch.float64)
        if self.length_penalty == "wu":
            return ((5.0 + n_token) / 6.0) ** self.alpha
        return n_token**self.alpha if self.length_penalty == "average" else torch.ones_like(n_token)

    def automaton(self, n_column: int, device: torch.device) -> Characters:
        """Return `characters` on a device and for n_column ids, where control symbols and padding of the vocabulary may
        not follow. Without characters it has one state."""
        after = torch.zeros(1, n_column, dtype=torch.int8) if self.characters is None else self.characters.after
        known = after[:, : self.n_real]
        after = F.pad(known, (0, n_column - known.size(1)), value=FORBIDDEN)  # a copy
        after[:, [PAD, BOS]] = FORBIDDEN
        return Characters(after.to(device))


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One translation: ids without BOS and EOS, and its scores."""

    ids: list[int]
    score: float  # log-probability including that of EOS: forced decoding of `ids` gives the same
    normalised: float  # score / length penalty: hypotheses are ranked by it
    finished: bool  # False: EOS was forced at the cap


class TopK(NamedTuple):
    """The n best tokens after each row of logits, and the terms of their log-probabilities."""

    best: Tensor  # (R, n) logits, best first; in full precision, as all numbers here
    token: Tensor  # (R, n) their columns
    normaliser: Tensor  # (R,) log-probability = logit - normaliser
    eos_logit: Tensor  # (R,)


def topk_tokens(logits: Tensor, n: int, never: Tensor, characters: Characters, state: Tensor) -> TopK:
    """Choose the n best columns of logits (R, V), which may be changed, of those that may follow. The normaliser is a
    sum over all columns, as in the loss. never: `characters.forbidden_between()`; state: (R,)."""
    eos_logit = full_precision(logits[:, EOS])
    if len(characters.after) == 1 or (state.is_cpu and not state.any()):
        return TopK(*best_continuations(logits, n, EOS, never), eos_logit)
    # No token may follow both inside a character and between two, so the few rows inside one choose separately.
    rows = state.nonzero().squeeze(1) if state.is_cpu else torch.arange(len(state), device=state.device)
    row_logits, is_inside = characters.forbid(logits[rows], state[rows]), (state[rows] > 0).unsqueeze(1)
    best, token, normaliser = best_continuations(logits, n, EOS, never)
    value, column = row_logits.topk(n)
    best = best.index_copy(0, rows, torch.where(is_inside, value.to(best.dtype), best[rows]))
    token = token.index_copy(0, rows, torch.where(is_inside, column, token[rows]))
    return TopK(best, token, normaliser, eos_logit)


def initial_table(settings: BeamSettings, max_len: Tensor, n_row: int, score_type: torch.dtype) -> dict[str, Tensor]:
    """Make the table of the sentences of a search before its first step: tensors by name, first dimension B.

    max_len: (B,) maximum number of tokens without EOS. n_row: hypotheses of each sentence; score_type: of their
    log-probabilities, score, (B, n_row). best: the best normalised scores of hypotheses that ended; state: (B, n_row),
    see `Characters`.
    """
    score = torch.full((len(max_len), n_row), -torch.inf, dtype=score_type, device=max_len.device)
    score[:, 0] = 0.0  # at first all rows are copies of one hypothesis, which must be found only once
    return {
        "max_len": max_len,
        "score": score,
        "last_divisor": settings.divisor(max_len + 1),
        "n_ended": torch.zeros_like(max_len),
        "best": torch.full((len(max_len), settings.n_best), -torch.inf, dtype=torch.float64, device=max_len.device),
        "done": torch.zeros_like(max_len, dtype=torch.bool),
        "state": torch.zeros_like(score, dtype=torch.long),
    }


def end_of_step(
    table: Mapping[str, Tensor],
    topk: TopK,
    settings: BeamSettings,
    n_token: Tensor,
    characters: Characters,
    logits: Tensor,
    rules: Rules | None = None,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Choose among the continuations of each sentence. Returns the notes of the step and the changes of the table.

    table: see `initial_table`; n_token: length of all hypotheses before. logits: (R, V), for the rules. Notes: see
    `empty_notes`; ended and forced are (B, K), of each old hypothesis, ended -inf if it goes on; token and parent are
    (B, beam), of the live ones.
    """
    score, at_cap = table["score"], table["max_len"] <= n_token
    can_end = table["state"] == 0
    if rules is not None:
        can_end = (logits[:, EOS] != -torch.inf).view_as(score)
        # Where no token may follow, all hypotheses end as at the cap.
        at_cap |= (logits.amax(-1).view_as(score) + score == -torch.inf).all(1)
    # But a hypothesis that may not end is dropped there if another one of the sentence has ended or may end now.
    has_proper_end = (table["n_ended"] > 0) | (can_end & (score > -torch.inf)).any(1)
    forced_score = score + (topk.eos_logit - topk.normaliser).view_as(score)
    forced_score = forced_score.masked_fill(~can_end & has_proper_end.unsqueeze(1), -torch.inf)
    # The n best continuations of a sentence are among the n best of each row: no (R, V) log-softmax is needed.
    total = (topk.best - topk.normaliser.unsqueeze(1)).view(*score.shape, -1) + score.unsqueeze(2)
    parent = torch.arange(score.size(1), device=score.device).repeat_interleave(topk.best.size(1))
    candidates = Candidates(total.flatten(1), parent.expand(len(score), -1), topk.token.view(len(score), -1))
    if rules is not None and rules.required:
        candidates = rules.allocate(candidates, logits, score, topk.normaliser, 2 * settings.beam)
    else:
        candidates = best_of(candidates, 2 * settings.beam)

    # A hypothesis ends if its EOS is among the `beam` best of its sentence; at the cap all of them end.
    top = Candidates(*(part[:, : settings.beam] for part in candidates))
    ended = torch.full_like(score, -torch.inf)
    # A parent has at most one EOS, so the maximum is its score; all other candidates are -inf.
    ended.scatter_reduce_(1, top.parent, top.score.masked_fill(top.token != EOS, -torch.inf), "amax")
    forced = at_cap.unsqueeze(1) & (ended == -torch.inf)
    ended = torch.where(forced, forced_score, ended)
    # At most `beam` of the 2·beam candidates end, so `beam` live ones remain.
    order = (candidates.token == EOS).to(torch.uint8).sort(dim=1, stable=True).indices[:, : settings.beam]
    live = Candidates(*(part.gather(1, order) for part in candidates))
    live = live._replace(score=live.score.masked_fill(live.token == EOS, -torch.inf))

    n_ended = table["n_ended"] + (ended > -torch.inf).sum(1)
    best = torch.cat([table["best"], ended.double() / settings.divisor(n_token + 1)], 1).topk(settings.n_best).values
    worst, best_live = best[:, -1], live.score.amax(1).double()
    best_next = best_live  # of those that may end in the next step
    if rules is not None:
        rules.follow(live.parent, live.token)
        best_next = live.score.masked_fill(~rules.may_end(), -torch.inf).amax(1).double()
    done = n_ended >= settings.beam
    if settings.beam > 1:
        done &= best_next / settings.divisor(n_token + 2) <= worst
    # A log-probability only falls, so a live hypothesis reaches at most its score now under the mildest penalty.
    done |= at_cap | (worst >= best_live / table["last_divisor"])
    state = table["state"].gather(1, live.parent)
    changes = {
        # A sentence that is done may stay in the batch: at -inf its hypotheses never end or win.
        "score": live.score.masked_fill(done.unsqueeze(1), -torch.inf),
        "n_ended": n_ended,
        "best": best,
        "done": done,
        "state": characters.follow(state, live.token),
    }
    return {"token": live.token, "parent": live.parent, "ended": ended, "forced": forced}, changes


def not_finite() -> MachineError:
    """Make the error for a sentence without any translation."""
    return MachineError(
        "the model's scores are not finite, so nothing can be translated: the weights are damaged, or the numbers are "
        "too large for the precision in use; try another checkpoint, or fp32."
    )


@torch.inference_mode()
def search(
    model: SearchModel, src_seq: Tensor, settings: BeamSettings, max_len: Tensor, *, rules: Rules | None = None
) -> list[list[Hypothesis]]:
    """Return the n_best translations of each sentence, best first; fewer only if fewer exist.

    src_seq: (B, S) ids as the model reads them, B > 0; max_len: (B,) maximum number of tokens without EOS.
    rules: if no hypothesis meets all requirements, others are returned as unfinished.
    """
    assert 1 <= settings.n_best <= settings.beam
    n_sentence, device = src_seq.size(0), src_seq.device
    state = model.start(src_seq)
    sentence = torch.arange(n_sentence, device=device)  # (B,) numbers of those still searched
    table = initial_table(settings, max_len.to(device), 1, score_type(model))  # one hypothesis before the first step
    last = torch.full((n_sentence, 1), BOS, device=device)  # (B, K) the newest token
    steps = list[tuple[Tensor, dict[str, Tensor]]]()  # sentences and notes of each step
    logits = model.step(last.flatten(), state)
    automaton = settings.automaton(logits.size(-1), device)
    # At most `beam` continuations of one hypothesis stay alive, and one ends.
    never, n = automaton.forbidden_between(), min(settings.beam + 1, logits.size(-1))
    while True:
        if rules is None:
            topk = topk_tokens(logits, n, never, automaton, table["state"].flatten())
        else:
            logits = full_precision(logits)
            eos_logit, normaliser = logits[:, EOS].clone(), log_total(logits, EOS)
            rules.forbid(automaton.forbid(logits, table["state"].flatten()))
            topk = TopK(*best_columns(logits, n), normaliser, eos_logit)
        n_token = sentence.new_tensor(len(steps))
        notes, changes = end_of_step(table, topk, settings, n_token, automaton, logits, rules)
        table |= changes
        steps.append((sentence, notes))
        n_done = int(table["done"].sum())
        if n_done == len(sentence):
            break
        row = torch.arange(len(sentence), device=device).unsqueeze(1) * last.size(1) + notes["parent"]
        last = notes["token"]
        if should_shrink(n_done, len(sentence)):
            gaps = Gaps.of(table["done"], device)
            table = {name: value[gaps.stay] for name, value in table.items()}
            row, sentence, last = row[gaps.stay], sentence[gaps.stay], last[gaps.stay]
            state.keep(gaps)
            if rules is not None:
                rules.keep(gaps.stay)
        state.reorder(row.flatten())
        logits = model.step(last.flatten(), state)
    all_notes, divisors = empty_notes(n_sentence, len(steps), settings.beam, table["score"]), list[float]()
    for step, (sentence, notes) in enumerate(steps):
        divisors.append(float(settings.divisor(sentence.new_tensor(step + 1))))
        for name, value in notes.items():
            all_notes[name][sentence, step, : value.size(1)] = value
    return backtrace(all_notes, np.array(divisors), settings.n_best)


def score_type(model: SearchModel) -> torch.dtype:
    """Return the type of the scores of a search: that of the model, but fp32 for half precision."""
    return torch.promote_types(next(model.parameters()).dtype, torch.float32)


def empty_notes(n_sentence: int, n_step: int, beam: int, score: Tensor) -> dict[str, Tensor]:
    """Make room for the notes of the steps, tensors (B, T, K) by name: token and parent of live hypotheses; ended, the
    scores of those that end; forced, whether only the cap ended them. score: has the type and the device of scores."""
    shape = (n_sentence, n_step, beam)
    dtypes = {"token": torch.long, "parent": torch.long, "ended": score.dtype, "forced": torch.bool}
    notes = {name: torch.zeros(shape, dtype=dtype, device=score.device) for name, dtype in dtypes.items()}
    notes["ended"].fill_(-torch.inf)
    return notes


def backtrace(notes: Mapping[str, Tensor], divisors: NDArray[np.float64], n: int) -> list[list[Hypothesis]]:
    """Return the n best hypotheses of each sentence, best first, from the notes of all steps (see `empty_notes`).

    divisors: (T,) length penalties of hypotheses that end in each step. Raises MachineError if a sentence has none.
    """
    token, parent, ended, forced = (notes[name].cpu().numpy() for name in ("token", "parent", "ended", "forced"))
    n_sentence, n_step, beam = ended.shape
    rank = (ended.astype(np.float64) / divisors[:, np.newaxis]).reshape(n_sentence, -1)
    # Stable: of two equally good hypotheses the one that ended first wins.
    place = np.argsort(-rank, axis=1, kind="stable")[:, :n]
    exists = np.take_along_axis(rank, place, 1) > -np.inf
    sentence, place = exists.nonzero()[0], place[exists]
    end, row = np.divmod(place, beam)
    score, is_forced = ended[sentence, end, row], forced[sentence, end, row]
    ids = np.zeros((len(place), n_step), dtype=np.int64)
    for step in range(int(end.max(initial=0)) - 1, -1, -1):
        ids[:, step] = token[sentence, step, row]
        row = np.where(step < end, parent[sentence, step, row], row)
    hypotheses: list[list[Hypothesis]] = [[] for _ in range(n_sentence)]
    normalised = rank[sentence, place].tolist()
    rows = zip(sentence.tolist(), ids, end, score.tolist(), normalised, is_forced.tolist(), strict=True)
    for number, tokens, length, log_prob, normalised_score, was_forced in rows:
        hypotheses[number].append(Hypothesis(tokens[:length].tolist(), log_prob, normalised_score, not was_forced))
    if not all(hypotheses):
        raise not_finite()
    return hypotheses


# Sampling. The samples of a line do not depend on the other lines of a batch.


def narrowed(
    logits: Tensor, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, epsilon: float = 0.0
) -> Tensor:
    """(R, V) logits -> (R, V) probabilities in fp64, zero for tokens that are not kept; each row sums to one.

    temperature: divides the logits. top_k: keep the k likeliest tokens, if not 0 (Fan et al. 2018). top_p: keep the
    likeliest tokens up to this total probability (Holtzman et al. 2020, nucleus sampling). epsilon: keep tokens of at
    least this probability (Hewitt et al. 2022). They apply in this order, and the likeliest token is always kept.
    """
    p = (logits.double() / temperature).softmax(-1)
    if top_k or top_p < 1.0:
        ranked, place = p.sort(dim=-1, descending=True, stable=True)
        if top_k:
            ranked[:, top_k:] = 0.0
            ranked /= ranked.sum(-1, keepdim=True)
        before = ranked.cumsum(-1) - ranked  # 0 for the first, which is always kept
        ranked = ranked.masked_fill(before >= top_p, 0.0)
        p = torch.zeros_like(p).scatter_(-1, place, ranked)
        p /= p.sum(-1, keepdim=True)
    if epsilon:
        p = p.masked_fill((p < epsilon) & (p < p.amax(-1, keepdim=True)), 0.0)
        p /= p.sum(-1, keepdim=True)
    return p


def draw(p: Tensor, uniform: Tensor) -> Tensor:
    """Draw one token for each row by inversion of its cumulative distribution. (R, V), (R,) in [0, 1) -> (R,)"""
    cumulative = p.cumsum(-1)
    # The product of a number below 1, at most 1 - 2^-53, and the total is rounded to less than the total.
    return torch.searchsorted(cumulative, (uniform * cumulative[:, -1]).unsqueeze(1), right=True).squeeze(1)


@torch.inference_mode()
def sample(
    model: SearchModel,
    src_seq: Tensor,
    settings: BeamSettings,
    max_len: Tensor,
    *,
    n: int,
    seeds: list[list[int]],
    narrow: Callable[[Tensor], Tensor] = narrowed,
    rules: Rules | None = None,
) -> list[list[Hypothesis]]:
    """Draw n translations of each sentence. A larger n gives the same ones first.

    seeds: B lists of integers. narrow: `narrowed` with its options. rules: required phrases are not supported. Other
    arguments: see `search`. A hypothesis has the log-probability under the model, not under the narrowed one.
    """
    device = src_seq.device
    # Random numbers in [0, 1). They depend only on the seed of a sentence and the number of a sample.
    uniform = torch.zeros(len(seeds), n, int(max_len.max()) + 1, dtype=torch.float64)
    for b, (seed, cap) in enumerate(zip(seeds, max_len.tolist(), strict=True)):
        for k in range(n):
            uniform[b, k, : cap + 1] = torch.from_numpy(np.random.default_rng([*seed, k]).random(cap + 1))
    uniform, max_len = uniform.to(device), max_len.to(device)
    # All samples, (B, n, …): tokens, lengths, log-probabilities, and whether the end was forced.
    tokens = torch.zeros(uniform.shape, dtype=torch.long, device=device)
    length, total = torch.zeros_like(tokens[:, :, 0]), torch.zeros_like(uniform[:, :, 0])
    is_cut = torch.zeros_like(length, dtype=torch.bool)
    # The live part: numbers of sentences, the last token of each row, and its state in `Characters`.
    sentence = torch.arange(len(seeds), device=device)
    last, live, inside = torch.full_like(sentence, BOS), torch.ones_like(is_cut), torch.zeros_like(length)
    state, n_token = model.start(src_seq), 0
    while len(sentence):
        logits = full_precision(model.step(last, state))
        normaliser = logits.logsumexp(-1, keepdim=True).double()  # over all tokens, as in training
        if not n_token:  # the first step has one row a sentence
            row = sentence.repeat_interleave(n)
            logits, normaliser = logits[row], normaliser[row]
            state.reorder(row)
            automaton = settings.automaton(logits.size(-1), device)
        possible = automaton.forbid(logits.clone(), inside.flatten())
        is_stuck = torch.zeros_like(live)
        if rules is not None:
            rules.forbid(possible)
            is_stuck = (possible.amax(-1) == -torch.inf).view(-1, n)  # no token may follow: end as at the cap
            possible[:, EOS] = torch.where(is_stuck.flatten(), logits[:, EOS], possible[:, EOS])
        if not torch.isfinite(possible.amax(-1)).all():
            raise not_finite()
        token = draw(narrow(possible), uniform[sentence, :, n_token].flatten()).view(-1, n)
        forced = is_stuck | ((max_len <= n_token).unsqueeze(1) & (token != EOS))
        token = token.masked_fill(forced, EOS)
        log_prob = (logits.double().gather(1, token.view(-1, 1)) - normaliser).view(-1, n)
        tokens[sentence, :, n_token] = token
        total[sentence] += log_prob.masked_fill(~live, 0.0)
        length[sentence] += live
        is_cut[sentence] |= forced & live
        n_token += 1
        live = live & (token != EOS)
        done = ~live.any(1)
        n_done = int(done.sum())
        if n_done == len(sentence):
            break
        inside = automaton.follow(inside, token)
        if rules is not None:
            rules.follow(torch.arange(n, device=device).expand_as(token), token)
        if should_shrink(n_done, len(sentence)):
            gaps = Gaps.of(done, device)
            stay = gaps.stay
            state.keep(gaps)
            if rules is not None:
                rules.keep(stay)
            state.reorder(torch.arange(live.numel(), device=device).view(-1, n)[stay].flatten())
            sentence, max_len, token, live, inside = (part[stay] for part in (sentence, max_len, token, live, inside))
        last = token.flatten()
    divisors = [float(settings.divisor(length.new_tensor(n))) for n in range(n_token + 1)]
    rows = zip(*(part.tolist() for part in (tokens, length, total, is_cut)), strict=True)
    return [
        [Hypothesis(ids[: n - 1], score, score / divisors[n], not cut) for ids, n, score, cut in zip(*row, strict=True)]
        for row in rows
    ]


def fingerprint(ids: list[int]) -> list[int]:
    """Hash of a line as two integers: equal for equal subwords, on any machine."""
    digest = hashlib.sha256(np.asarray(ids, dtype="<i8").tobytes()).digest()
    return [int.from_bytes(digest[i : i + 8], "little") for i in (0, 8)]
