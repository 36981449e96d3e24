"""What the translations of a batch must and must not contain, and where every hypothesis of a search stands in that.

Subwords that may not follow get the logit -inf; nothing else of a search changes, so what it finds is still ranked by
the model. Required phrases need more than that, since a beam drops what does not pay at once: the places of a beam are
shared out among the hypotheses that have none, a part and all of them (Post and Vilar 2018, dynamic beam allocation;
Hu et al. 2019). Phrases themselves are in `required.py` and `avoided.py`.
Shapes: B sentences still searched, K hypotheses of each, R = B·K rows, V vocabulary, C candidates.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from nmt.decoding.constraints.avoided import Avoided
from nmt.decoding.constraints.phrases import Pieces
from nmt.decoding.constraints.request import Request
from nmt.decoding.constraints.required import Required
from nmt.decoding.scoring.candidates import Candidates, best_of


class Rules:
    """The rules of one batch, and the state of every hypothesis in them.

    min_len: (B,) fewest tokens, EOS not counted. no_repeat: no hypothesis has so many tokens in a row twice, but where
    its prefix or a required phrase that it lacks wants the last of them; 0: it may.
    placeholders: their ids, of which a translation has each that stands for an item of its source, and no other; once
    at most, but where phrases are asked for, which may have items in them.
    """

    def __init__(
        self,
        pieces: Pieces,
        asked: Sequence[Request],
        *,
        min_len: Tensor,
        no_repeat: int,
        eos: int,
        placeholders: Mapping[str, int] | None = None,
    ) -> None:
        self._pieces, self._eos, self._no_repeat = pieces, eos, no_repeat
        self._min_len = min_len
        self._streams = [pieces.stream(one.prefix) if one.prefix else b"" for one in asked]
        self._n_byte = torch.from_numpy(pieces.n_byte).to(min_len.device)
        self._no_space = torch.tensor([raw[:1] != b" " for raw in pieces.bytes], device=min_len.device)
        self._place = min_len.new_zeros(len(asked), 1)  # (B, K) bytes of the prefix that are there
        self._required = Required(pieces, [one.wanted for one in asked], min_len.device)
        self._avoided = Avoided(pieces, [one.avoided for one in asked], eos)
        # (B, K, placeholders) which may still follow.
        names, self._placeholders = list(placeholders or {}), min_len.new_tensor(list((placeholders or {}).values()))
        there = [[name in dict(one.items) for name in names] for one in asked]
        self._left = torch.tensor(there, device=min_len.device, dtype=torch.bool).unsqueeze(1)
        self._free = torch.tensor([[one.asks] for one in asked], device=min_len.device)  # (B, 1)

    @property
    def requires(self) -> bool:
        """Whether any sentence still searched has to contain a phrase."""
        return bool(self._required)

    def spread(self, n: int) -> None:
        """Let each sentence, which has one hypothesis, have n of it."""
        self._place, self._left = self._place.repeat(1, n), self._left.repeat(1, n, 1)
        self._required.spread(n)
        self._avoided.spread(n)

    def forbid(self, logits: Tensor, prefix: Tensor) -> None:
        """Make impossible what may not follow. logits: (R, V), changed in place; prefix: (R, t) the tokens so far."""
        n, n_token = self._place.size(1), prefix.size(1)
        if self._no_repeat and n_token >= self._no_repeat:
            self._forbid_repeats(logits, prefix)
        logits[:, self._eos].masked_fill_((self._min_len > n_token).repeat_interleave(n), -torch.inf)
        if len(self._placeholders):
            possible = logits[:, self._placeholders]
            logits[:, self._placeholders] = possible.masked_fill(~self._left.flatten(0, 1), -torch.inf)
        if self._required:
            logits[:, self._eos].masked_fill_(self._required.lacking().flatten(), -torch.inf)
        self._avoided.forbid(logits)
        for sentence, stream in enumerate(self._streams):
            for k, place in enumerate(self._place[sentence].tolist() if stream else ()):
                if place < len(stream):
                    row = logits[sentence * n + k]
                    possible = torch.tensor(self._pieces.leading_to(stream, place), device=row.device)
                    kept = row[possible]
                    row.fill_(-torch.inf)
                    row[possible] = kept

    def ends(
        self, logits: Tensor, score: Tensor, at_cap: Tensor, forced: Tensor, has_ended: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Where hypotheses have to end: as at their cap where nothing may follow, but not as they should not if another
        one of the sentence has ended, or ends now, as it should.

        logits: (R, V) of what may follow; score: (B, K); at_cap, has_ended: (B,); forced: (B, K) the scores with EOS.
        """
        nothing = (logits.amax(-1).view_as(score) + score == -torch.inf).all(1)
        barred = (logits[:, self._eos] == -torch.inf).view_as(score)
        fine = has_ended | (~barred & (score > -torch.inf)).any(1)
        return at_cap | nothing, forced.masked_fill(barred & fine.unsqueeze(1), -torch.inf)

    def share_out(
        self, found: Candidates, rank: Tensor, logits: Tensor, score: Tensor, normaliser: Tensor, n: int
    ) -> Candidates:
        """The n continuations of each sentence that share out the places of a beam: first the best of those that lack
        least of what is required, then the best of those that lack more, …, then the second best of each.

        found, rank: (B, C) what the model would do, and what that is ranked by; what gets on with a phrase is added.
        logits: (R, V) of what may follow; score: (B, K); normaliser: (R,).
        """
        more = self._required.advancing(found, logits, score, normaliser)
        every = Candidates(*(torch.cat(parts, dim=1) for parts in zip(found, more, strict=True)))
        place = torch.cat([rank, more.score], dim=1).sort(dim=1, descending=True, stable=True).indices
        every = Candidates(*(part.gather(1, place) for part in every))
        lack = self._required.lack(every).masked_fill(every.score == -torch.inf, torch.iinfo(torch.int32).max)
        lack, place = lack.sort(dim=1, stable=True)
        # Within those that lack the same, how many come before.
        count = torch.arange(lack.size(1), device=lack.device).expand_as(lack)
        first = torch.ones_like(lack, dtype=torch.bool)
        first[:, 1:] = lack[:, 1:] != lack[:, :-1]
        turn = count - count.masked_fill(~first, 0).cummax(1).values
        turn = turn.masked_fill(lack == torch.iinfo(torch.int32).max, lack.size(1))
        every = Candidates(*(part.gather(1, place) for part in every))
        return best_of(every, -turn, n)

    def follow(self, parent: Tensor, token: Tensor) -> None:
        """Hypothesis k of a sentence is from now on old hypothesis parent[k] and one more token. Both (B, K)."""
        place = self._place.gather(1, parent)
        self._place = place + self._n_byte[token] + ((place == 0) & self._no_space[token])
        written = (token.unsqueeze(2) == self._placeholders) & ~self._free.unsqueeze(2)
        self._left = self._left.gather(1, parent.unsqueeze(2).expand(-1, -1, self._left.size(2))) & ~written
        if self._required:
            self._required.follow(parent, token)
        self._avoided.follow(parent, token)

    def keep(self, sentences: Tensor) -> None:
        """Let sentences leave. sentences: (B',) the ones that stay."""
        self._streams = [self._streams[b] for b in sentences.tolist()]
        self._required.keep(sentences)
        self._avoided.keep(sentences.tolist())
        self._min_len, self._place, self._left, self._free = (
            part[sentences] for part in (self._min_len, self._place, self._left, self._free)
        )

    def may_end(self) -> Tensor:
        """(B, K) whether a hypothesis has all that is required."""
        found = self._has_prefix()
        return found & ~self._required.lacking() if self._required else found

    def _has_prefix(self) -> Tensor:
        """(B, K) whether a hypothesis has all of its prefix."""
        length = self._place.new_tensor([len(stream) for stream in self._streams])
        return self._place >= length.unsqueeze(1)

    def _forbid_repeats(self, logits: Tensor, prefix: Tensor) -> None:
        n = self._no_repeat
        windows = prefix.unfold(1, n, 1)  # (R, W, n)
        last = prefix[:, prefix.size(1) - n + 1 :].unsqueeze(1)
        again = (windows[:, :, :-1] == last).all(2) & self._has_prefix().view(-1, 1)
        row, window = again.nonzero(as_tuple=True)
        token = windows[row, window, -1]
        if self._required:
            free = ~self._required.get_on(row, token)
            row, token = row[free], token[free]
        logits[row, token] = -torch.inf
