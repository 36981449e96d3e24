"""Sampling over ids. The samples of a line do not depend on the other lines of a batch."""

import hashlib
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from nmt.data.subwords import BOS, EOS
from nmt.decoding.beam import BeamSettings, Hypothesis, not_finite
from nmt.decoding.candidates import should_shrink
from nmt.decoding.rules import Rules
from nmt.decoding.scorer import full_precision
from nmt.models.base import SearchModel
from nmt.models.layers import Gaps, closing


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
    token = torch.searchsorted(cumulative, (uniform * cumulative[:, -1]).unsqueeze(1), right=True).squeeze(1)
    # By rounding a number may fall beyond the end, where the last token may have probability 0.
    last = p.size(-1) - 1 - (p > 0).flip(-1).to(torch.uint8).argmax(-1)
    return torch.minimum(token, last)


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
    arguments: see `beam.search`. A hypothesis has the log-probability under the model, not under the narrowed one.
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
            rest = closing(done)
            state.keep(Gaps.of(rest, device))
            if rules is not None:
                rules.keep(rest)
            state.reorder((rest.unsqueeze(1) * n + torch.arange(n, device=device)).flatten())
            sentence, max_len, token, live, inside = (part[rest] for part in (sentence, max_len, token, live, inside))
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
