"""The target subwords among which a search looks for the translation of a sentence, in place of the whole vocabulary.

Those that its source subwords are most often translated by, and frequent ones (S. Jean et al. 2015, "On using very
large target vocabulary for neural machine translation", section 3.3, with IBM model 1 in place of an aligner). A list
belongs to its sentence alone, so what is found does not depend on which sentences are translated together.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from nmt.data.stored.translation_table import TranslationTable
from nmt.models.narrow import Narrow, Normals

_FREQUENT = 4  # one in so many target subwords counts as frequent


class Shortlist:
    """Some target subwords for each sentence.

    n: how many. first: the one that every list begins with, EOS. never: those that none has.
    """

    def __init__(
        self, table: TranslationTable, n: int, *, first: int, never: Sequence[int], device: torch.device
    ) -> None:
        frequent = torch.from_numpy(table.frequent).long().to(device)
        n_trg = len(frequent)
        self._n = min(n, n_trg - len(never))
        self._first, self._never = first, torch.tensor(list(never), device=device, dtype=torch.long)
        self._trg = torch.from_numpy(table.trg).long().to(device)
        # What a target subword is worth: how often it is a translation, and among equals how frequent it is.
        self._share = torch.from_numpy(table.share).long().to(device) * n_trg
        self._usual = torch.empty_like(frequent)
        self._usual[frequent] = torch.arange(n_trg, device=device).flip(0)
        self._group = (self._usual < n_trg - n_trg // _FREQUENT).long()
        self._n_of = torch.bincount(self._group, minlength=2)
        self._normals: dict[int, tuple[Tensor, Normals]] = {}

    def __call__(self, src_seq: Tensor) -> Narrow:
        """(B, S) source ids, EOS and padding among them -> different target ids, `first` in front."""
        columns = self._columns(src_seq)
        listed = torch.zeros_like(columns[:, :2])
        listed.scatter_add_(1, self._group[columns], torch.ones_like(columns))
        return Narrow(columns, (self._n_of - listed).log(), self._of)

    def _columns(self, src_seq: Tensor) -> Tensor:
        worth = self._usual.repeat(len(src_seq), 1)
        worth.scatter_add_(1, self._trg[src_seq].flatten(1), self._share[src_seq].flatten(1))
        worth[:, self._never] = -1
        worth[:, self._first] = torch.iinfo(torch.long).max
        return worth.topk(self._n, dim=1).indices

    def _of(self, weight: Tensor) -> Normals:
        # Each model of an ensemble has its own; a matrix that is held here keeps its number.
        if id(weight) not in self._normals:
            self._normals[id(weight)] = weight, Normals.of(weight, self._group)
        return self._normals[id(weight)][1]
