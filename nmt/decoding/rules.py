"""Constraints of the translations of a batch, and their states for every hypothesis of a search.

Subwords that may not follow get the logit -inf. For required phrases, the places of a beam are allocated to hypotheses
that contain none, a part or all of them (Post and Vilar 2018, dynamic beam allocation; Hu et al. 2019).
Shapes: B sentences still searched, K hypotheses of each, R = B·K rows, V vocabulary, C candidates.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from nmt.data.subwords import EOS
from nmt.decoding.candidates import Candidates, best_of
from nmt.decoding.phrases import START, PhraseAutomaton, Pieces, RequiredPhrase, boundaries_of
from nmt.decoding.request import Request


@lru_cache(64)
def _automaton(pieces: Pieces, phrases: frozenset[str]) -> PhraseAutomaton:
    texts = map(pieces.codec.normalised, phrases)
    return PhraseAutomaton(pieces, [(pieces.in_bytes(text), boundaries_of(text)) for text in texts])


class RequiredPhrases:
    """The required phrases of a batch: their tables, joined. P: the most phrases of a sentence.

    start: (B, P) first state of each phrase. complete, n_left: (n_state,), as in `PhraseTable`.
    """

    def __init__(self, pieces: Pieces, required: Sequence[Sequence[RequiredPhrase]], device: torch.device) -> None:
        # A state of a table has its number plus that of the first state of the table.
        tables = {phrase: pieces.table(phrase) for phrases in required for phrase in phrases}
        *starts, n_state = accumulate((len(table.complete) for table in tables.values()), initial=0)
        first, n_phrase = dict(zip(tables, starts, strict=True)), max(map(len, required), default=0)
        # A sentence with fewer phrases has in their places the last state, in which a phrase is complete for ever.
        rows = [[*map(first.__getitem__, row), *[n_state - 1] * (n_phrase - len(row))] for row in required]
        self.start = torch.tensor(rows, dtype=torch.long, device=device)
        if tables:  # joined: (n_state, …), and (n_state, M) the subwords that advance a phrase, padded with -1
            dtype = np.int16 if n_state <= 1 << 15 else np.int32  # the table takes most of the memory
            parts = [(np.add(table.after, first[phrase], dtype=dtype), *table[1:5]) for phrase, table in tables.items()]
            self._after, self.complete, self.n_left, self._n_matched, self._awaits_boundary = (
                torch.from_numpy(np.concatenate(arrays)).to(device) for arrays in zip(*parts, strict=True)
            )
            ids = [torch.from_numpy(row) for table in tables.values() for row in table.advancing]
            self._advancing = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=-1).to(device)

    def __bool__(self) -> bool:
        """Return whether any sentence has a required phrase."""
        return self.start.size(1) > 0

    def after(self, state: Tensor, parent: Tensor, token: Tensor) -> Tensor:
        """Return the states (B, N, P) after old hypotheses are continued by tokens, (B, N) both. state: (B, K, P)"""
        return self._after[state.take_along_dim(parent.unsqueeze(2), 1), token.unsqueeze(2)].long()

    def advancing(
        self, state: Tensor, candidates: Candidates, logits: Tensor, score: Tensor, normaliser: Tensor
    ) -> Candidates:
        """The likeliest continuation of each hypothesis that advances each phrase, or that keeps one which awaits a
        boundary, unless it is among the candidates already.

        state: (B, K, P); candidates: (B, C); logits: (R, V). Returns (B, K·P), with -inf where there is none.
        """
        n, place = score.size(1), (~self.complete | self._awaits_boundary)[state].nonzero(as_tuple=True)
        value, token = logits.new_full(state.shape, -torch.inf), torch.zeros_like(state)
        state, row = state[place], place[0] * n + place[1]  # (N,) of the phrases that are not complete
        ids = self._advancing[state]  # (N, M)
        advanced = logits[row.unsqueeze(1), ids.clamp(min=0)].masked_fill(ids < 0, -torch.inf)
        n_left = self.n_left[self._after[state.unsqueeze(1), ids.clamp(min=0)].long()]
        # Prefer subwords after which fewer are missing.
        shortening = advanced.masked_fill(n_left >= self.n_left[state].unsqueeze(1), -torch.inf)
        best, column = torch.where((shortening > -torch.inf).any(1, keepdim=True), shortening, advanced).max(1)
        best_id = ids.gather(1, column.unsqueeze(1)).squeeze(1).clamp(min=0)
        waits = self._awaits_boundary[state]
        n_matched = self._n_matched[self._after[state[waits]].long()]  # after each subword of the vocabulary
        is_lost = n_matched < self._n_matched[state[waits]].unsqueeze(1)
        best[waits], best_id[waits] = logits[row[waits]].masked_fill(is_lost, -torch.inf).max(1)
        value[place], token[place] = best, best_id
        value = value - normaliser.view(-1, n, 1) + score.unsqueeze(2)
        known = candidates.token.view(len(score), n, 1, -1)
        new = token.masked_fill(value == -torch.inf, -1)
        is_known = (token.unsqueeze(3) == known).any(3) | (token.unsqueeze(3) == new.unsqueeze(2)).tril(-1).any(3)
        parent = torch.arange(n, device=score.device).view(1, n, 1).expand_as(token)
        return Candidates(value.masked_fill(is_known, -torch.inf).flatten(1), parent.flatten(1), token.flatten(1))


class Rules:
    """The constraints of one batch, and their states for every hypothesis.

    min_len: (B,) minimum number of tokens without EOS. no_repeat: a hypothesis that contains all that is required may
    not repeat so many tokens in a row; 0: it may. n_hypothesis: for each sentence, at first.
    A translation may contain the placeholders of the items of its source and no others: each once, or more often if the
    request has constraints, as phrases may contain items.
    """

    def __init__(
        self, pieces: Pieces, requests: Sequence[Request], *, min_len: Tensor, no_repeat: int, n_hypothesis: int = 1
    ) -> None:
        device = min_len.device
        self._pieces, self._no_repeat, self._min_len = pieces, no_repeat, min_len
        self._tokens = min_len.new_zeros(len(requests), n_hypothesis, 0)  # (B, K, t) of each hypothesis
        # The bytes of the subwords of each prefix: a space and the prefix.
        prefixes = [request.prefix and " " + pieces.codec.normalised_prefix(request.prefix) for request in requests]
        self._prefixes = list(map(pieces.in_bytes, prefixes))
        self._n_byte = torch.from_numpy(pieces.n_byte).to(device)
        self._has_no_space = torch.from_numpy(pieces.matrix[:, 0] != ord(" ")).to(device)
        self._n_prefix_byte = min_len.new_zeros(len(requests), n_hypothesis)  # (B, K) bytes that are written
        self.required = RequiredPhrases(pieces, [request.required_phrases for request in requests], device)
        self._phrases = self.required.start.unsqueeze(1).repeat(1, n_hypothesis, 1)  # (B, K, P) their states
        self._avoids = any(request.avoided for request in requests)
        # The automaton of the avoided phrases of each sentence, and its states for the hypotheses.
        self._automata = [_automaton(pieces, frozenset(request.avoided)) for request in requests]
        self._states = [[START] * n_hypothesis for _ in requests]
        name_of = pieces.codec.placeholder_of
        self._placeholders = min_len.new_tensor(list(name_of))  # their ids
        items_of = [dict(request.items) for request in requests]
        has_item = [[name in items for name in name_of.values()] for items in items_of]
        is_allowed = torch.tensor(has_item, device=device, dtype=torch.bool)
        self._is_allowed = is_allowed.unsqueeze(1).repeat(1, n_hypothesis, 1)  # (B, K, placeholders)
        self._may_repeat = torch.tensor([[request.asks] for request in requests], device=device)  # (B, 1)

    def forbid(self, logits: Tensor) -> None:
        """Forbid tokens that may not follow. logits: (R, V), changed in place."""
        (_, n, n_token), may_end = self._tokens.shape, self.may_end()
        if self._no_repeat and n_token >= self._no_repeat:
            tokens = self._tokens.flatten(0, 1)
            windows = tokens.unfold(1, self._no_repeat, 1)  # (R, W, n)
            last = tokens[:, n_token - self._no_repeat + 1 :].unsqueeze(1)
            is_repeat = (windows[:, :, :-1] == last).all(2) & may_end.view(-1, 1)
            row, window = is_repeat.nonzero(as_tuple=True)
            logits[row, windows[row, window, -1]] = -torch.inf
        too_short = (self._min_len > n_token).unsqueeze(1) | ~may_end
        logits.view(len(too_short), n, -1)[:, :, EOS].masked_fill_(too_short, -torch.inf)
        if len(self._placeholders):
            possible = logits[:, self._placeholders]
            logits[:, self._placeholders] = possible.masked_fill(~self._is_allowed.flatten(0, 1), -torch.inf)
        if self._avoids:
            sentences = zip(self._automata, self._states, strict=True)
            ids = [automaton.forbidden(state) for automaton, states in sentences for state in states]  # of each row
            rows = torch.from_numpy(np.repeat(np.arange(len(ids)), list(map(len, ids))))
            columns = torch.from_numpy(np.concatenate(ids))
            logits[rows.to(logits.device), columns.to(logits.device)] = -torch.inf
        for sentence, prefix in enumerate(self._prefixes):
            for k, n_byte in enumerate(self._n_prefix_byte[sentence].tolist() if prefix else ()):
                if n_byte < len(prefix):
                    row = logits[sentence * n + k]
                    possible = torch.tensor(self._pieces.continuing(prefix, n_byte), device=row.device)
                    kept = row[possible]
                    row.fill_(-torch.inf)
                    row[possible] = kept

    def allocate(self, candidates: Candidates, logits: Tensor, score: Tensor, normaliser: Tensor, n: int) -> Candidates:
        """Dynamic beam allocation: choose n continuations of each sentence, in rounds over banks. A bank has the
        candidates that miss equally many subwords of required phrases; the bank that misses least comes first."""
        impossible = torch.iinfo(torch.int32).max
        advancing = self.required.advancing(self._phrases, candidates, logits, score, normaliser)
        joined = Candidates(*(torch.cat(parts, dim=1) for parts in zip(candidates, advancing, strict=True)))
        joined = best_of(joined, joined.score.size(1))
        n_left = self.required.n_left[self.required.after(self._phrases, joined.parent, joined.token)].sum(2)
        bank = n_left.masked_fill(joined.score == -torch.inf, impossible)
        bank, place = bank.sort(dim=1, stable=True)
        count = torch.arange(bank.size(1), device=bank.device).expand_as(bank)
        is_first = bank.diff(dim=1, prepend=bank[:, :1] - 1) != 0
        rank_in_bank = count - count.masked_fill(~is_first, 0).cummax(1).values
        rank_in_bank = rank_in_bank.masked_fill(bank == impossible, bank.size(1))
        return best_of(Candidates(*(part.gather(1, place) for part in joined)), n, -rank_in_bank)

    def follow(self, parent: Tensor, token: Tensor) -> None:
        """Make hypothesis k of a sentence continue old hypothesis parent[k] by token[k]. Both (B, K)."""
        index = parent.unsqueeze(2)
        self._tokens = torch.cat([self._tokens.take_along_dim(index, 1), token.unsqueeze(2)], dim=2)
        n_byte = self._n_prefix_byte.gather(1, parent)
        self._n_prefix_byte = n_byte + self._n_byte[token] + ((n_byte == 0) & self._has_no_space[token])
        is_used = (token.unsqueeze(2) == self._placeholders) & ~self._may_repeat.unsqueeze(2)
        self._is_allowed = self._is_allowed.take_along_dim(index, 1) & ~is_used
        if self.required:
            self._phrases = self.required.after(self._phrases, parent, token)
        if self._avoids:
            sentences = zip(self._automata, parent.tolist(), token.tolist(), strict=True)
            for b, (automaton, parents, tokens) in enumerate(sentences):
                before = self._states[b]
                self._states[b] = [automaton.after(before[k], i) for k, i in zip(parents, tokens, strict=True)]

    def keep(self, sentences: Tensor) -> None:
        """Remove all but some sentences. sentences: (B',) numbers of those that remain."""
        numbers = sentences.tolist()
        self._prefixes = [self._prefixes[b] for b in numbers]
        self._automata, self._states = [self._automata[b] for b in numbers], [self._states[b] for b in numbers]
        self._min_len, self._may_repeat = self._min_len[sentences], self._may_repeat[sentences]
        self._tokens, self._n_prefix_byte, self._phrases, self._is_allowed = (
            tensor[sentences] for tensor in (self._tokens, self._n_prefix_byte, self._phrases, self._is_allowed)
        )

    def may_end(self) -> Tensor:
        """Return (B, K), whether a hypothesis has its prefix and all required phrases."""
        length = self._n_prefix_byte.new_tensor([len(prefix) for prefix in self._prefixes])
        has_prefix = self._n_prefix_byte >= length.unsqueeze(1)
        return has_prefix & self.required.complete[self._phrases].all(2) if self.required else has_prefix
