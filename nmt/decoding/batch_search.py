"""Search for one batch, by `beam.py`, `fixed_search.py` or sampling; on out-of-memory split it in half and retry."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nmt.data.arrays import Ragged
from nmt.data.batches import pad
from nmt.data.subwords import BOS, EOS, PAD, Subwords
from nmt.decoding.beam import BeamSettings, Hypothesis, not_finite, search
from nmt.decoding.candidates import Characters, characters_of, mostly_done
from nmt.decoding.fixed_search import FixedSearch
from nmt.decoding.phrases import pieces_of
from nmt.decoding.request import Request
from nmt.decoding.rules import Rules
from nmt.decoding.scorer import Look, full_precision, score_tokens
from nmt.errors import OutOfMemory, RecipeError, is_out_of_memory
from nmt.models.base import SearchModel, evaluating
from nmt.models.layers import Gaps, closing
from nmt.recipe.decode_options import DecodeConfig

# Sampling over ids.


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
    device, eos = src_seq.device, how.eos
    uniform, max_len = _uniform(seeds, n, max_len.tolist()).to(device), max_len.to(device)
    sentence = torch.arange(src_seq.size(0), device=device)  # (B,) place in src_seq
    found: list[list[Hypothesis | None]] = [[None] * n for _ in seeds]
    state = model.start(src_seq)
    last = torch.full_like(sentence, how.bos)
    score = torch.zeros(len(seeds), n, dtype=torch.float64, device=device)
    prefix = src_seq.new_zeros(len(seeds), n, 0)
    live = torch.ones(len(seeds), n, dtype=torch.bool, device=device)
    never, n_token = last.new_zeros(0), 0
    characters = characters and characters.to(device)
    inside = torch.zeros_like(live, dtype=torch.long)  # where each last character stands: see `Characters`
    while len(sentence):
        logits = full_precision(model.step(last, state))
        normaliser = logits.logsumexp(-1, keepdim=True).double()  # before anything is forbidden, as in training
        if not n_token:  # one row a sentence until now
            row = torch.arange(len(sentence), device=device).repeat_interleave(n)
            logits, normaliser = logits[row], normaliser[row]
            state.reorder(row)
            never = last.new_tensor(how.impossible(logits.size(-1)))
        possible = logits.index_fill(1, never, -torch.inf)
        nothing = torch.zeros_like(live)
        if rules is not None:
            rules.forbid(possible, prefix.flatten(0, 1))
        if characters is not None:
            characters.forbid(possible, inside.flatten())
            room = (max_len - n_token - 1).clamp(min=0).repeat_interleave(n)
            characters.leave_room(possible, inside.flatten(), room)
        if rules is not None:
            nothing = (possible.amax(-1) == -torch.inf).view(-1, n)  # may follow: it ends, as at the cap
            possible[:, eos] = torch.where(nothing.flatten(), logits[:, eos], possible[:, eos])
        if not torch.isfinite(possible.amax(-1)).all():
            raise not_finite()
        token = draw(narrowing(possible), uniform[sentence, :, n_token].flatten()).view(-1, n)
        forced = nothing | ((max_len <= n_token).unsqueeze(1) & (token != eos))
        token = token.masked_fill(forced, eos)
        told = logits.double().gather(1, token.view(-1, 1)) - normaliser
        score = score + told.view(-1, n).masked_fill(~live, 0.0)
        n_token += 1
        ends = live & (token == eos)
        divisor = float(how.divisor(max_len.new_tensor(n_token)))
        for b, k in ends.nonzero().tolist():
            total = float(score[b, k])
            ids, cut = prefix[b, k].tolist(), bool(forced[b, k])
            found[int(sentence[b])][k] = Hypothesis(ids, total, total / divisor, not cut)
        live = live & ~ends
        done = ~live.any(1)
        n_done = int(done.sum())
        if n_done == len(sentence):
            break
        prefix = torch.cat([prefix, token.unsqueeze(2)], dim=2)
        last = token
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
            sentence, max_len, prefix = sentence[stay], max_len[stay], prefix[stay]
            score, last, live, inside = score[stay], last[stay], live[stay], inside[stay]
        last = last.flatten()
    return [[one for one in drawn if one is not None] for drawn in found]


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


Row = tuple[list[int], Request]  # the ids of a source, without EOS, and what is asked of its translation
BARE = Request("")  # of ids of which nothing else is known


class BatchSearch:
    """Searches with one model, as options say.

    fixed: the beam search, for the same model, where nothing is asked of a translation.
    whole_characters: False to let a model write bytes that are no UTF-8, as other engines do.
    """

    def __init__(
        self,
        model: SearchModel,
        subwords: Subwords,
        config: DecodeConfig,
        *,
        fixed: FixedSearch | None = None,
        whole_characters: bool = True,
    ) -> None:
        self.model, self.fixed = model, fixed
        self._subwords, self._config = subwords, config
        raw = subwords.trg.raw(range(subwords.trg.n_text))
        self._characters = characters_of(raw) if whole_characters else None
        n_best = config.n_best if config.mbr == "none" else config.beam  # mbr chooses among all that a beam has found
        self._how = BeamSettings.of(config, bos=BOS, eos=EOS, pad=PAD, n_real=subwords.trg.n_text, n_best=n_best)

    def log_probs(
        self, src_ids: Sequence[list[int]], trg_ids: Sequence[list[int]], look: Look | None = None
    ) -> list[list[float]]:
        """Log-probability of each token of given translations, EOS included. look: told where the model looked."""
        with evaluating(self.model):
            return score_tokens(self.model, src_ids, trg_ids, max_tokens=self._config.max_tokens, look=look)

    def search(self, rows: Sequence[Row]) -> list[list[Hypothesis]]:
        """Search for one batch; where the memory of the device is too small, for its halves. Raises OutOfMemory for one
        sentence, and RecipeError where phrases are required of samples."""
        try:
            return self._search_whole(rows)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if len(rows) == 1:
                n_src, n_hypothesis = len(rows[0][0]), self._config.n_candidate
                instead = "" if self.model.device.type == "cpu" else ", or translate on the CPU: --device cpu"
                raise OutOfMemory(
                    f"the memory of {self.model.device} is too small for one sentence of {n_src} subwords and "
                    f"{n_hypothesis} hypotheses of it. Make decode.beam or decode.samples smaller{instead}."
                ) from None
        half = len(rows) // 2
        return self.search(rows[:half]) + self.search(rows[half:])

    def _search_whole(self, rows: Sequence[Row]) -> list[list[Hypothesis]]:
        config, ids, kinds = self._config, [ids for ids, _ in rows], self._subwords.src.protects
        requests = [request.in_placeholders(kinds) for _, request in rows]
        src_seq = pad(Ragged.of(ids), after=(EOS,)).to(self.model.device)
        n_src = torch.tensor([len(row) for row in ids])
        min_len = (config.min_len_a * n_src).long() + config.min_len_b
        max_len = (config.max_len_a * n_src).long() + config.max_len_b
        max_len += torch.tensor([self._n_asked(request) for request in requests])
        # Bare ids ask nothing of placeholders: they may be those of any text.
        is_bare = any(request is BARE for _, request in rows)
        placeholders = {} if is_bare else self._subwords.trg.placeholder_ids()
        rules = None
        if placeholders or config.no_repeat or int(min_len.max()) or any(request.asks for request in requests):
            rules = Rules(
                pieces_of(self._subwords.trg),
                requests,
                min_len=min_len.to(self.model.device),
                no_repeat=config.no_repeat,
                eos=EOS,
                placeholders=placeholders,
                n=config.samples or 1,
            )
        with evaluating(self.model):
            if not config.samples:
                if self.fixed and rules is None:
                    return self.fixed(src_seq, self._how, max_len, self._characters)
                return search(self.model, src_seq, self._how, max_len, rules=rules, characters=self._characters)
            if any(request.requires for request in requests):
                raise RecipeError("phrases can be required of beam search only: set decode.samples to 0.")
            narrowing = Narrowing(config.temperature, config.top_k, config.top_p, config.epsilon)
            return sample(
                self.model,
                src_seq,
                self._how,
                max_len,
                n=config.samples,
                seeds=[[config.seed, *fingerprint(row)] for row in ids],
                narrowing=narrowing,
                rules=rules,
                characters=self._characters,
            )

    def _n_asked(self, request: Request) -> int:
        """Subwords that are asked for, which a translation may have beside its own."""
        if not request.asks:
            return 0
        asked = [text for one in request.wanted for text in [one.phrase] * one.times]
        return sum(map(len, self._subwords.trg.encode([request.prefix, *asked] if request.prefix else asked)))
