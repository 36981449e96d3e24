"""The beam search of `beam.py` in tensors that keep their shapes and places: the same translations, and a step that a
GPU can replay.

A GPU is done with the kernels of a step sooner than Python has ordered them, so ordering is what a search there waits
for. Here a step asks the device for nothing: what it finds is noted, sent to the host when sentences leave, and read
there while the device makes further steps. They leave when as many are done that a smaller shape does; until then they
are searched on, impossible, and so are empty sentences that fill a shape up. Shapes are few, so that recordings are.

Shapes: B sentences of the present shape, K beam, T steps.
"""

import threading
from contextlib import nullcontext

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from nmt.decoding.search.beam import Hypothesis, not_finite
from nmt.decoding.search.characters import Characters
from nmt.decoding.search.fixed_state import fixed
from nmt.decoding.search.fixed_table import Table
from nmt.decoding.search.places import Places
from nmt.decoding.search.recording import Late, Recorder
from nmt.decoding.search.settings import BeamSettings
from nmt.device import send
from nmt.models.base import SearchModel
from nmt.models.gaps import Gaps, closing

# Steps that there is room for at first; then twice as many, and so on. All of the room is read at every step.
FIRST_ROOM = 32
# Leaving takes as long as some small steps, so it waits until the shape of those that stay is that share of the present
# one; and fewer rows than these are no fewer tiles of a product.
_SMALLER = 0.75
_FEWEST_ROWS = 128
_READ_AT_ONCE = 32  # sentences, whose hypotheses the host makes in less time than a small step takes


def bucket(n: int) -> int:
    """The size that n is filled up to: 8, 16, … 64, 80, 96, 112, 128, 160, …: four between two powers of two."""
    step = max(8, 1 << max(0, (n - 1).bit_length() - 3))
    return -(-n // step) * step


class FixedSearch:
    """`beam.search` without rules, for one model. Several threads may share it, and take turns."""

    def __init__(self, model: SearchModel) -> None:
        self.model = model
        self._lock = threading.Lock()
        self._places: Places | None = None
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
                self._places = self._places or Places(device)
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
        places: Places,
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
        """What was found for each sentence."""
        weights = tuple((one.data_ptr(), one.numel()) for one in (*self._model.parameters(), *self._model.buffers()))
        late = Late(self._places.device)
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
                late = Late(self._places.device)
            else:  # a step has been heard of that came after all that was sent: it has arrived
                self._read(_READ_AT_ONCE)
        self._send(np.arange(len(self._sentence)))
        if self._places.device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        self._read(len(self._found))
        if not all(self._found):
            raise not_finite()
        return self._found

    def _advance(self) -> None:
        """A step, from places to places: on a GPU, what is recorded."""
        self._state.reorder(self._table.go_on(self._model.step(self._table.last, self._state)))

    def _shape_of(self, n_left: int) -> int:
        """How many sentences a step is of where so many go on."""
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

    def _read(self, n: int) -> None:
        """Make hypotheses of what has arrived, for n sentences at the most."""
        while self._sent and n > 0:
            sentences, notes = self._sent.pop(0)
            if len(sentences) > n:
                self._sent.insert(0, (sentences[n:], {name: note[n:] for name, note in notes.items()}))
            its = {name: note[:n].numpy() for name, note in notes.items()}
            length = torch.arange(1, its["token"].shape[1] + 1)
            hypotheses = traced(**its, divisors=self._how.divisor(length).numpy(), n=self._how.n_best)
            for sentence, found in zip(sentences[:n], hypotheses, strict=True):
                self._found[sentence] = found
            n -= len(hypotheses)


def traced(
    token: NDArray[np.int64],
    parent: NDArray[np.int64],
    ended: NDArray[np.floating],
    forced: NDArray[np.bool_],
    divisors: NDArray[np.float64],
    n: int,
) -> list[list[Hypothesis]]:
    """The n best hypotheses of each sentence, best first, of what each step has noted: all but divisors (B, T, K).

    token, parent: what goes on after a step, and which of those before it that continues. ended, forced: by those
    before it. divisors: (T,) of scores of hypotheses that end in each step.
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
