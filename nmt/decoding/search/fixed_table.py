"""What a search in fixed shapes knows of its sentences and hypotheses, in places that stay; and the end of a step,
which makes hypotheses of logits, from places to places.

Shapes: B sentences of the present shape, K beam, R = B·K rows, T steps that there is room for, V vocabulary.
"""

from functools import partial

import torch
from torch import Tensor

from nmt.decoding.scoring.candidates import best_of, continuations, fallen_behind, keep
from nmt.decoding.search.beam import finish, impossible, is_over, likeliest_in_characters
from nmt.decoding.search.characters import Characters
from nmt.decoding.search.places import Places, pile_up, spread
from nmt.decoding.search.settings import BeamSettings
from nmt.kernels import on_gpu
from nmt.models.gaps import Gaps


class Table:
    """All of a search but the state of its model; at first of one that has just begun.

    last: (R,) the newest token of each hypothesis; place: (1,) how many steps have been made. of: by name, of each
    sentence: max_len; score, (B, K) of its hypotheses, and state, theirs in `Characters`; last_divisor, of the longest
    one; n_ended; best, (B, n_best) of those that ended, divided by their lengths; done, whether nothing is looked for
    any longer.
    notes: by name, of each step, (B, T, K): token and parent, what hypotheses go on with, and which they continue;
    ended, what those score that have ended, and forced, whether that was at the cap.
    """

    def __init__(
        self,
        how: BeamSettings,
        places: Places,
        max_len: Tensor,
        room: int,
        score_type: torch.dtype,
        characters: Characters | None = None,
    ) -> None:
        """max_len: (B,) on the device, 0 where there is no sentence. score_type: of scores. characters: always those of
        one vocabulary."""
        self._how, self._places, self.room = how, places, room
        self._characters = characters and Characters(
            *(places.once(f"characters.{name}", partial(part.to, places.device)) for name, part in characters.named())
        )
        device, n_sentence = max_len.device, len(max_len)
        score = torch.full((n_sentence, how.beam), -torch.inf, dtype=score_type, device=device)
        score[:, 0] = 0.0  # the others begin as copies of the first, and must not be found twice
        shape = (n_sentence, room, how.beam)
        self.last = places.put("search.last", max_len.new_full((n_sentence * how.beam,), how.bos))
        self.place = places.put("search.place", max_len.new_zeros(1))
        self._of = pile_up(
            places,
            "search.",
            {
                "max_len": max_len,
                "score": score,
                "last_divisor": how.divisor(max_len + 1),
                "n_ended": torch.zeros_like(max_len),
                "best": torch.full((n_sentence, how.n_best), -torch.inf, dtype=torch.float64, device=device),
                "done": torch.zeros_like(max_len, dtype=torch.bool),
                "state": max_len.new_zeros(n_sentence, how.beam),
            },
        )
        self._notes = pile_up(
            places,
            "search.",
            {
                "token": max_len.new_zeros(shape),
                "parent": max_len.new_zeros(shape),
                "ended": score.new_zeros(shape),
                "forced": torch.zeros(shape, dtype=torch.bool, device=device),
            },
        )
        self._spread()

    def go_on(self, logits: Tensor) -> Tensor:
        """The end of a step: logits (R, V), which may be changed. Returns which rows the hypotheses continue, (R,)."""
        if on_gpu.takes_choice(logits, self._how.beam, self.of["score"]):
            return self._by_kernels(logits)
        how, of, score = self._how, self.of, self.of["score"]
        n_column, divisor = logits.size(-1), self.divisors()
        state = of["state"].flatten()
        best, token, normaliser, eos_logit = likeliest_in_characters(
            logits, min(how.beam + 1, n_column), how.eos, self._never(n_column), self._characters, state
        )
        at_cap = of["max_len"] <= self.place
        forced_score = score + (eos_logit - normaliser).view_as(score)
        if self._characters:
            forced_score = self._characters.ends(forced_score, score, of["state"], of["n_ended"] > 0)
        found = continuations(score, best, token, normaliser)
        found = best_of(found, fallen_behind(found, best.size(1), how.diversity), 2 * how.beam)
        ended = finish(found, forced_score, at_cap, how.beam, how.beam, how.eos)
        kept = keep(found, how.beam, how.eos)
        for name, what in zip(self.notes, (kept.token, kept.parent, ended.score, ended.forced), strict=True):
            self.notes[name].index_copy_(1, self.place, what.unsqueeze(1))
        self.place += 1
        of["n_ended"] += (ended.score > -torch.inf).sum(1)
        normalised = ended.score.double() / divisor.index_select(0, self.place)
        of["best"].copy_(torch.cat([of["best"], normalised], 1).topk(how.n_best).values)
        worst, best_live = of["best"][:, -1], kept.score.amax(1).double()
        next_divisor = divisor.index_select(0, self.place + 1)
        done = is_over(of["n_ended"], worst, best_live, at_cap, next_divisor, how.beam)
        done |= worst >= best_live / of["last_divisor"]  # the shortcut
        of["done"].copy_(done)
        score.copy_(kept.score.masked_fill(done.unsqueeze(1), -torch.inf))
        self.last.copy_(kept.token.flatten())
        if self._characters:
            of["state"].copy_(self._characters.follow(of["state"].gather(1, kept.parent), kept.token))
        first = torch.arange(0, score.numel(), how.beam, device=score.device)
        return (first.unsqueeze(1) + kept.parent).flatten()

    def _by_kernels(self, logits: Tensor) -> Tensor:
        """The same by kernels of a GPU; of equally good columns any, but always the same."""
        from nmt.kernels import choice_triton

        how, n_column = self._how, logits.size(-1)
        allowed = self._places.once(
            f"allowed.{how.pad}.{how.bos}.{how.n_real}.{n_column}",
            lambda: self._allowed(n_column),
        )
        state = self.of["state"]
        rows = choice_triton.go_on(
            logits,
            allowed,
            state.flatten(),
            self.of,
            self.notes,
            self.last,
            self.place,
            self.divisors(),
            how.eos,
            how.diversity,
        )
        self.place += 1
        if self._characters:
            state.copy_(self._characters.follow(state.flatten()[rows], self.last).view_as(state))
        return rows

    def _allowed(self, n_column: int) -> Tensor:
        """(S, V) the columns that may be chosen in each state."""
        from nmt.kernels import search_triton

        never = self._never(n_column)
        if self._characters:
            return self._characters.allowed(n_column, never)
        return search_triton.allowed(n_column, never).unsqueeze(0)

    def keep(self, gaps: Gaps) -> None:
        """Let sentences leave."""
        for pile in (*self._of, *self._notes):
            pile.close(gaps)
        self._spread()
        self.last = gaps.close(self.last.view(-1, self._how.beam)).flatten()

    def widen(self, room: int) -> None:
        """Make room for so many steps."""
        self.room = room
        for pile in self._notes:
            pile.widen(1, room)
        self._spread()

    def divisors(self) -> Tensor:
        """(T + 2,) what scores of hypotheses of each length are divided by."""
        how, n = self._how, self.room + 2
        return self._places.once(
            f"divisors.{how.length_penalty}.{how.alpha}.{n}",
            lambda: how.divisor(torch.arange(n, device=self._places.device)),
        )

    def _never(self, n_column: int) -> Tensor:
        """(n,) the columns that no translation has."""
        how = self._how
        return self._places.once(
            f"never.{how.pad}.{how.bos}.{how.n_real}",
            lambda: self.last.new_tensor(impossible(how.pad, how.bos, how.n_real, n_column, self._characters)),
        )

    def _spread(self) -> None:
        self.of, self.notes = spread(self._of), spread(self._notes)
