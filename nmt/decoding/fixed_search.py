"""The beam search of `beam.py` in tensors that keep their shapes and places: a step that a GPU can record and replay.

A step asks the device for nothing: what it finds is noted, sent to the host when sentences leave, and read there while
the device makes further steps. Sentences leave when as many are done that a smaller shape does; until then they are
searched on, impossible, and so are empty sentences that fill a shape up.
Shapes: B sentences of the present shape, K beam, T steps.
"""

import threading
from contextlib import nullcontext

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from nmt import ops
from nmt.decoding.beam import (
    BeamSettings,
    Hypothesis,
    finish,
    is_over,
    not_finite,
    ranks,
    topk_tokens,
)
from nmt.decoding.candidates import Characters, best_of, continuations, keep
from nmt.decoding.graph import Buffers, DelayedCopy, Recorder
from nmt.decoding.scorer import States
from nmt.device import send
from nmt.models.base import DecoderState, SearchModel
from nmt.models.layers import Gaps, closing

# Decoder states whose tensors keep their shapes and places, so that a GPU can record a step and replay it.


class FixedState(DecoderState):
    """A state with room for n_step tokens of n_row hypotheses a sentence, made of one that has read nothing yet.

    prefix: what the names of its places begin with. Another state that takes them is the end of this one.
    """

    n_step: Tensor  # (1,)
    ancestry: Tensor
    _slots: Tensor  # (K,) those of the token that is being read

    def __init__(self, state: DecoderState, places: Buffers, *, n_row: int, n_step: int, prefix: str = "") -> None:
        super().__init__(places.put_all(prefix, state.per_sentence), {}, state.n_sentence)
        self._places, self._prefix, self._n_row, self._n_slot = places, prefix, n_row, n_step * n_row
        rows = {name: tensor.repeat_interleave(n_row, 0) for name, tensor in state.per_row.items()}
        self.per_row = places.put_all(prefix, rows)
        self.n_step = places.alike(prefix + "n_step", (1,), torch.int64).zero_()
        shape = (state.n_sentence * n_row, self._n_slot)
        self.ancestry = places.alike(prefix + "ancestry", shape, torch.bool).zero_()
        # The caches of a state before: a replayed step finds them without asking `remember` for any.
        for name in places.caches:
            if name.startswith(prefix):
                self._open(name.removeprefix(prefix))

    def look_back(self, visible: Tensor) -> Tensor:
        row = torch.arange(self._n_row, device=visible.device)
        self._slots = self.n_step * self._n_row + row
        own = (row.unsqueeze(1) == row) & visible.view(-1, self._n_row, 1)
        self.ancestry.index_copy_(1, self._slots, own.flatten(0, 1))
        return self.ancestry.view(self.n_sentence, 1, self._n_row, -1)

    def remember(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        new = {f"slf_k.{layer}": k, f"slf_v.{layer}": v}
        for name, its in new.items():
            if name not in self.seen:
                self._places.caches[self._prefix + name] = its.size(1), its.size(3), its.dtype
                self._open(name)
        keys, values = (self.seen[name] for name in new)
        ops.store(keys, values, k, v, self._slots, self.n_step)
        return keys, values

    def _open(self, name: str) -> None:
        """Make a cache: zeros, since what is hidden is multiplied by zero, which not everything survives."""
        n_head, width, dtype = self._places.caches[self._prefix + name]
        shape = (self.n_sentence, n_head, self._n_slot, width)
        self.seen[name] = self._places.alike(self._prefix + name, shape, dtype).zero_()

    def reorder(self, rows: Tensor) -> None:
        moved = {name: tensor.index_select(0, rows) for name, tensor in self.per_row.items()}
        self.per_row = self._places.put_all(self._prefix, moved)
        self.ancestry = self._places.put(self._prefix + "ancestry", self.ancestry.index_select(0, rows))

    def keep(self, gaps: Gaps) -> None:
        """As of any state; but here the rows leave with their sentences, since it is known how many each has."""

        def of_rows(value: Tensor) -> Tensor:
            return gaps.close(value.view(-1, self._n_row, *value.shape[1:])).flatten(0, 1)

        self.per_sentence, self.seen = gaps.close_all(self.per_sentence), gaps.close_all(self.seen)
        self.per_row = {name: of_rows(tensor) for name, tensor in self.per_row.items()}
        self.ancestry = of_rows(self.ancestry)
        self.n_sentence = gaps.n

    def widen(self, n_step: int) -> None:
        """Make room for so many tokens in all."""
        self._n_slot = n_step * self._n_row
        for name, cache in self.seen.items():
            self.seen[name] = self._places.widen(self._prefix + name, cache, 2, self._n_slot)
        self.ancestry = self._places.widen(self._prefix + "ancestry", self.ancestry, 1, self._n_slot)


class FixedStates(States):
    """The fixed states of several models, which move together."""

    def widen(self, n_step: int) -> None:
        """Make room for so many tokens in all."""
        for state in self.states:
            assert isinstance(state, FixedState | FixedStates)
            state.widen(n_step)


def fixed(
    state: DecoderState, places: Buffers, *, n_row: int, n_step: int, prefix: str = ""
) -> "FixedState | FixedStates":
    """A state before its first token, made fixed."""
    if not isinstance(state, States):
        return FixedState(state, places, n_row=n_row, n_step=n_step, prefix=prefix)
    return FixedStates(
        [
            fixed(one, places, n_row=n_row, n_step=n_step, prefix=f"{prefix}{number}.")
            for number, one in enumerate(state.states)
        ]
    )


# The hypotheses of a search in fixed shapes, in places that stay, and the end of a step.


class Table:
    """All of a search but the state of its model; at first of one that has just begun.

    last: (R,) the newest token of each hypothesis; place: (1,) steps that were made. of: by name, of each sentence;
    best: (B, n_best) normalised scores of those that ended; last_divisor: of the longest. notes: by name, of each step,
    (B, T, K): token and parent of those that go on; score of those that ended, and forced, where the cap ended them.
    """

    def __init__(
        self,
        how: BeamSettings,
        places: Buffers,
        max_len: Tensor,
        room: int,
        score_type: torch.dtype,
        characters: Characters | None = None,
    ) -> None:
        """max_len: (B,) on the device, 0 where there is no sentence. score_type: of scores. characters: always those of
        one vocabulary."""
        self._how, self._places, self.room = how, places, room
        self._characters = characters and Characters(
            places.once("characters", lambda: characters.after.to(places.device))
        )
        device, n_sentence = max_len.device, len(max_len)
        score = torch.full((n_sentence, how.beam), -torch.inf, dtype=score_type, device=device)
        score[:, 0] = 0.0  # the others begin as copies of the first, and must not be found twice
        shape = (n_sentence, room, how.beam)
        self.last = places.put("search.last", max_len.new_full((n_sentence * how.beam,), how.bos))
        self.place = places.put("search.place", max_len.new_zeros(1))
        self.of = places.put_all(
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
        self.notes = places.put_all(
            "search.",
            {
                "token": max_len.new_zeros(shape),
                "parent": max_len.new_zeros(shape),
                "ended": score.new_zeros(shape),
                "forced": torch.zeros(shape, dtype=torch.bool, device=device),
            },
        )

    def go_on(self, logits: Tensor) -> Tensor:
        """The end of a step: logits (R, V), which may be changed. Returns which rows the hypotheses continue, (R,)."""
        if (rows := self._by_kernels(logits)) is not None:
            return rows
        how, of, score = self._how, self.of, self.of["score"]
        n_column, divisor = logits.size(-1), self.divisors()
        best, token, normaliser, eos_logit = topk_tokens(
            logits,
            min(how.beam + 1, n_column),
            how.eos,
            self._never(n_column),
            self._characters,
            of["state"].flatten(),
        )
        at_cap = of["max_len"] <= self.place
        forced_score = score + (eos_logit - normaliser).view_as(score)
        if self._characters:
            forced_score = self._characters.ends(forced_score, score, of["state"], of["n_ended"] > 0)
        found = continuations(score, best, token, normaliser)
        found = best_of(found, ranks(found, best.size(1), how), 2 * how.beam)
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

    def _by_kernels(self, logits: Tensor) -> Tensor | None:
        """The same by kernels of a GPU; None where there are none for it."""
        how, n_column, state = self._how, logits.size(-1), self.of["state"]
        name = f"allowed.{how.pad}.{how.bos}.{how.n_real}.{n_column}"
        rows = ops.end_of_step(
            logits,
            lambda: self._places.once(name, lambda: self._allowed(n_column)),
            state.flatten(),
            self.of,
            self.notes,
            self.last,
            self.place,
            self.divisors(),
            eos=how.eos,
            diversity=how.diversity,
        )
        if rows is not None:
            self.place += 1
            if self._characters:
                state.copy_(self._characters.follow(state.flatten()[rows], self.last).view_as(state))
        return rows

    def _allowed(self, n_column: int) -> Tensor:
        """(S, V) uint8, 1 for the columns that may be chosen in each state."""
        never, text = torch.tensor(self._how.impossible(n_column), device=self.last.device), self._characters
        if text is None:
            return torch.ones(1, n_column, dtype=torch.uint8, device=never.device).index_fill_(1, never, 0)
        allowed = torch.zeros(len(text.after), n_column, dtype=torch.uint8, device=never.device)
        allowed[:, : text.after.size(1)] = text.after >= 0
        return allowed.index_fill_(1, never, 0)

    def keep(self, gaps: Gaps) -> None:
        """Let sentences leave."""
        self.of, self.notes = gaps.close_all(self.of), gaps.close_all(self.notes)
        self.last = gaps.close(self.last.view(-1, self._how.beam)).flatten()

    def widen(self, room: int) -> None:
        """Make room for so many steps."""
        self.room = room
        self.notes = {name: self._places.widen(f"search.{name}", note, 1, room) for name, note in self.notes.items()}

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
            lambda: self.last.new_tensor(how.impossible(n_column, self._characters)),
        )


# Steps that there is room for at first; then twice as many, and so on. All of the room is read at every step.
FIRST_ROOM = 32
# Leaving takes as long as some small steps, so it waits until the shape of those that stay is that share of the present
# one; and fewer rows than these are no fewer tiles of a product.
_SMALLER = 0.75
_FEWEST_ROWS = 128


def bucket(n: int) -> int:
    """The size that n is filled up to: 8, 16, … 64, 80, 96, 112, 128, 160, …: four between two powers of two."""
    step = max(8, 1 << max(0, (n - 1).bit_length() - 3))
    return -(-n // step) * step


class FixedSearch:
    """`beam.search` without rules, for one model. Several threads may share it, and take turns."""

    def __init__(self, model: SearchModel) -> None:
        self.model = model
        self._lock = threading.Lock()
        self._places: Buffers | None = None
        self._recorder = Recorder(model.device)

    @torch.inference_mode()
    def __call__(
        self, src_seq: Tensor, how: BeamSettings, max_len: Tensor, characters: Characters | None = None
    ) -> list[list[Hypothesis]]:
        """The n_best translations of each sentence, best first; all arguments are those of `beam.search`."""
        device = self.model.device
        if not len(src_seq):
            return []
        # Streams and events are those of the present device.
        with self._lock, torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            try:
                self._places = self._places or Buffers(device)
                return _Search(self.model, how, self._places, src_seq, max_len, characters).run(self._recorder)
            except BaseException:  # such as too little memory: what is held here is not in the way of another try
                self._places = None
                self._recorder.keep_while(None)
                raise


class _Search:
    """One search under way."""

    def __init__(
        self,
        model: SearchModel,
        how: BeamSettings,
        places: Buffers,
        src_seq: Tensor,
        max_len: Tensor,
        characters: Characters | None,
    ) -> None:
        n_sentence, n_src = src_seq.shape
        self._model, self._how, self._places = model, how, places
        self._found: list[list[Hypothesis]] = [[] for _ in range(n_sentence)]
        self._sentence = np.arange(bucket(n_sentence))  # which of the call; from n_sentence on there is none
        self._sent: list[tuple[NDArray[np.int64], dict[str, Tensor]]] = []  # of which of the call, and what was noted
        self._n_src, self._n_step = bucket(n_src), 0
        n_more = len(self._sentence) - n_sentence
        src_seq = F.pad(src_seq, (0, self._n_src - n_src, 0, n_more), value=how.pad)
        src_seq[n_sentence:, 0] = how.eos
        # Two steps more than the longest translation has may be made before the host hears that it is done.
        model.reach(int(max_len.max()) + 3)
        self._state = fixed(model.start(src_seq), places, n_row=how.beam, n_step=FIRST_ROOM)
        score_type = torch.promote_types(next(model.parameters()).dtype, torch.float32)
        longest = F.pad(max_len.to(places.device), (0, n_more))
        self._table = Table(how, places, longest, FIRST_ROOM, score_type, characters)

    def run(self, recorder: Recorder) -> list[list[Hypothesis]]:
        """Search, and return the hypotheses of each sentence."""
        weights = tuple((one.data_ptr(), one.numel()) for one in (*self._model.parameters(), *self._model.buffers()))
        late = DelayedCopy(self._places.device)
        while True:
            if self._n_step == self._table.room:
                self._table.widen(2 * self._n_step)
                self._state.widen(2 * self._n_step)
            recorder.keep_while((self._places.moves, weights))
            recorder.run((self._how, len(self._sentence), self._n_src, self._table.room), self._advance)
            self._n_step += 1
            if (done := late.tell(self._table.of["done"])) is None:
                continue
            if not (n_left := int((~done).sum())):
                break
            if self._shape_of(n_left) <= _SMALLER * len(self._sentence):
                self._leave(done, self._shape_of(n_left))
                late = DelayedCopy(self._places.device)
            else:  # a step has been heard of that came after all that was sent: it has arrived
                self._read()
        self._send(np.arange(len(self._sentence)))
        if self._places.device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        self._read()
        if not all(self._found):
            raise not_finite()
        return self._found

    def _advance(self) -> None:
        """A step, from places to places: on a GPU, what is recorded."""
        self._state.reorder(self._table.go_on(self._model.step(self._table.last, self._state)))

    def _shape_of(self, n_left: int) -> int:
        """Number of sentences of a step where so many go on."""
        return max(bucket(n_left), bucket(-(-_FEWEST_ROWS // self._how.beam)))

    def _leave(self, done: Tensor, n: int) -> None:
        """Send what was found for the sentences that are done, (B,) on the host, and go on with n of which some may be
        done, too. More may be by now: they are heard of later."""
        self._send(np.flatnonzero(done.numpy()))
        stay = closing(done, n)
        self._sentence = np.where(done[stay].numpy(), len(self._found), self._sentence[stay.numpy()])
        gaps = Gaps.of(stay, self._places.device)
        self._table.keep(gaps)
        self._state.keep(gaps)

    def _send(self, which: NDArray[np.int64]) -> None:
        """Begin to copy to the host what was noted of the sentences in these places, if there are any there."""
        which = which[self._sentence[which] < len(self._found)]
        if not len(which):
            return
        places, notes = send(torch.from_numpy(which), self._places.device), self._table.notes
        sent = {name: note[places, : self._n_step].to("cpu", non_blocking=True) for name, note in notes.items()}
        self._sent.append((self._sentence[which], sent))

    def _read(self) -> None:
        """Make hypotheses of what has arrived."""
        for sentences, notes in self._sent:
            its = {name: note.numpy() for name, note in notes.items()}
            length = torch.arange(1, its["token"].shape[1] + 1)
            hypotheses = traced(**its, divisors=self._how.divisor(length).numpy(), n=self._how.n_best)
            for sentence, found in zip(sentences, hypotheses, strict=True):
                self._found[sentence] = found
        self._sent.clear()


def traced(
    token: NDArray[np.int64],
    parent: NDArray[np.int64],
    ended: NDArray[np.floating],
    forced: NDArray[np.bool_],
    divisors: NDArray[np.float64],
    n: int,
) -> list[list[Hypothesis]]:
    """The n best hypotheses of each sentence, best first, of the notes of each step, (B, T, K), see `Table`.

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
