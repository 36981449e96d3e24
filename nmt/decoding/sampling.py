"""Sampling over ids: translations drawn from a model, each line's own whatever is around it."""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nmt.data.subwords import BOS, EOS
from nmt.decoding.beam import BeamSettings, Hypothesis, not_finite
from nmt.decoding.candidates import Characters, mostly_done
from nmt.decoding.rules import Rules
from nmt.decoding.scorer import full_precision
from nmt.models.base import SearchModel
from nmt.models.layers import Gaps, closing


@dataclass(frozen=True)
class Narrowing:
    """Changes of a distribution before a token is drawn from it; by default none.

    temperature: divides the logits. top_k: only the k likeliest, if not 0 (Fan et al. 2018). top_p: only the likeliest
    that together have this probability (Holtzman et al. 2020, nucleus sampling). epsilon: only what has at least this
    probability (Hewitt et al. 2022). They apply in this order, and the likeliest token always stays.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    epsilon: float = 0.0

    def __call__(self, logits: Tensor) -> Tensor:
        """(R, V) logits -> (R, V) probabilities in fp64, zero for what is left out; rows add up to one."""
        p = (logits.double() / self.temperature).softmax(-1)
        if self.top_k or self.top_p < 1.0:
            ranked, place = p.sort(dim=-1, descending=True, stable=True)
            if self.top_k:
                ranked[:, self.top_k :] = 0.0
                ranked /= ranked.sum(-1, keepdim=True)
            before = ranked.cumsum(-1) - ranked  # so the first always stays
            ranked = ranked.masked_fill(before >= self.top_p, 0.0)
            p = torch.zeros_like(p).scatter_(-1, place, ranked)
            p /= p.sum(-1, keepdim=True)
        if self.epsilon:
            p = p.masked_fill((p < self.epsilon) & (p < p.amax(-1, keepdim=True)), 0.0)
            p /= p.sum(-1, keepdim=True)
        return p


def draw(p: Tensor, uniform: Tensor) -> Tensor:
    """One token a row: where its number falls in the cumulated probabilities. (R, V), (R,) in [0, 1) -> (R,)"""
    cumulated = p.cumsum(-1)
    token = torch.searchsorted(cumulated, (uniform * cumulated[:, -1]).unsqueeze(1), right=True).squeeze(1)
    # Rounding may leave a number beyond the end, where the last token of all might be an impossible one.
    last = p.size(-1) - 1 - (p > 0).flip(-1).to(torch.uint8).argmax(-1)
    return torch.minimum(token, last)


@torch.inference_mode()
def sample(
    model: SearchModel,
    src_seq: Tensor,
    how: BeamSettings,
    max_len: Tensor,
    *,
    n: int,
    seeds: list[list[int]],
    narrowing: Narrowing,
    rules: Rules | None = None,
    characters: Characters | None = None,
) -> list[list[Hypothesis]]:
    """n translations of each sentence in the order in which they were drawn; more of them begin with the same ones.

    seeds: B lists of whole numbers. rules: bring no required phrases about. A hypothesis has the log-probability that
    the model gives it, not that of the narrowed distribution. The rest as of `beam.search`.
    """
    device = src_seq.device
    uniform, max_len = _uniform(seeds, n, max_len.tolist()).to(device), max_len.to(device)
    characters = characters and Characters(characters.after.to(device))
    # Of all samples, (B, n, …): tokens, how many there are, log-probabilities, and which were forced to end.
    tokens = torch.zeros(uniform.shape, dtype=torch.long, device=device)
    length, total = torch.zeros_like(tokens[:, :, 0]), torch.zeros_like(uniform[:, :, 0])
    is_cut = torch.zeros_like(length, dtype=torch.bool)
    # Of those still drawn: which sentences, the last token of each row, and where its last character stands.
    sentence = torch.arange(len(seeds), device=device)
    last, live, inside = torch.full_like(sentence, BOS), torch.ones_like(is_cut), torch.zeros_like(length)
    state, n_token, never = model.start(src_seq), 0, last.new_zeros(0)
    while len(sentence):
        logits = full_precision(model.step(last, state))
        normaliser = logits.logsumexp(-1, keepdim=True).double()  # before anything is forbidden, as in training
        if not n_token:  # one row a sentence until now
            row = sentence.repeat_interleave(n)
            logits, normaliser = logits[row], normaliser[row]
            state.reorder(row)
            never = last.new_tensor(how.impossible(logits.size(-1)))
        possible = logits.index_fill(1, never, -torch.inf)
        nothing = torch.zeros_like(live)
        if rules is not None:
            rules.forbid(possible)
        if characters is not None:
            characters.forbid(possible, inside.flatten())
            room = (max_len - n_token - 1).clamp(min=0).repeat_interleave(n)
            characters.leave_room(possible, inside.flatten(), room)
        if rules is not None:
            nothing = (possible.amax(-1) == -torch.inf).view(-1, n)  # may follow: it ends, as at the cap
            possible[:, EOS] = torch.where(nothing.flatten(), logits[:, EOS], possible[:, EOS])
        if not torch.isfinite(possible.amax(-1)).all():
            raise not_finite()
        token = draw(narrowing(possible), uniform[sentence, :, n_token].flatten()).view(-1, n)
        forced = nothing | ((max_len <= n_token).unsqueeze(1) & (token != EOS))
        token = token.masked_fill(forced, EOS)
        told = (logits.double().gather(1, token.view(-1, 1)) - normaliser).view(-1, n)
        tokens[sentence, :, n_token] = token
        total[sentence] += told.masked_fill(~live, 0.0)
        length[sentence] += live
        is_cut[sentence] |= forced & live
        n_token += 1
        live = live & (token != EOS)
        done = ~live.any(1)
        n_done = int(done.sum())
        if n_done == len(sentence):
            break
        if characters is not None:
            inside = characters.follow(inside, token)
        if rules is not None:
            rules.follow(torch.arange(n, device=device).expand_as(token), token)
        if mostly_done(n_done, len(sentence)):
            stay = closing(done)
            state.keep(Gaps.of(stay, device))
            if rules is not None:
                rules.keep(stay)
            state.reorder((stay.unsqueeze(1) * n + torch.arange(n, device=device)).flatten())
            sentence, max_len, token, live, inside = (one[stay] for one in (sentence, max_len, token, live, inside))
        last = token.flatten()
    divisors = [float(how.divisor(length.new_tensor(n))) for n in range(n_token + 1)]
    parts = zip(*(one.tolist() for one in (tokens, length, total, is_cut)), strict=True)
    return [
        [Hypothesis(ids[: n - 1], score, score / divisors[n], not cut) for ids, n, score, cut in zip(*one, strict=True)]
        for one in parts
    ]


def _uniform(seeds: list[list[int]], n: int, caps: list[int]) -> Tensor:
    """Random numbers from 0 to 1, (B, n, longest cap + 1): those of a sample depend on no other sentence or sample."""
    uniform = torch.zeros(len(seeds), n, max(caps, default=0) + 1, dtype=torch.float64)
    for one, (seed, cap) in enumerate(zip(seeds, caps, strict=True)):
        for k in range(n):
            uniform[one, k, : cap + 1] = torch.from_numpy(np.random.default_rng([*seed, k]).random(cap + 1))
    return uniform


def fingerprint(ids: list[int]) -> list[int]:
    """Whole numbers that stand for a line: the same for the same subwords, on any machine."""
    digest = hashlib.sha256(np.asarray(ids, dtype="<i8").tobytes()).digest()
    return [int.from_bytes(digest[i : i + 8], "little") for i in (0, 8)]
