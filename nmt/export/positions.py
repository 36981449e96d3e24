"""What is added to the words at each position, as the table of a fixed length that other engines want."""

import torch
from torch import Tensor, nn

from nmt.models.transformer.Models import LearnedPositions, PositionalEncoding

# Their tables end somewhere; ours go on. As many rows as nmt-translate reads subwords, and as many again.
N_POSITION = 2048


def position_table(place: nn.Module) -> Tensor:
    """(N_POSITION or more, D), for positions that are added and not turned by."""
    if isinstance(place, PositionalEncoding):
        zero = torch.zeros(1, N_POSITION, place.pos_table.size(-1), device=place.pos_table.device)
        rows: Tensor = place(zero)
        return rows[0]
    assert isinstance(place, LearnedPositions)
    table = place.pos_emb.weight
    return torch.cat([table, table[-1:].expand(max(0, N_POSITION - len(table)), -1)])
