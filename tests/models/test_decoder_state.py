"""What decoding remembers: keys and values stay with their sentence, whoever leaves and however often room is made."""

import torch

from nmt.models.base import DecoderState
from nmt.models.gaps import Gaps


def test_what_was_remembered_stays_with_its_sentence_when_others_leave_and_room_is_made():
    generator = torch.Generator().manual_seed(1)
    n_sentence, n_row, n_head, width = 5, 3, 2, 4
    state = DecoderState({"number": torch.arange(n_sentence)}, {}, n_sentence)
    whole = torch.empty(n_sentence, n_head, 0, width)  # the same without room
    for step in range(40):
        new = torch.randn(state.n_sentence, n_head, n_row, width, generator=generator)
        state.look_back(torch.ones(state.n_sentence * n_row, dtype=torch.bool))
        whole = torch.cat([whole, new], 2)
        for found in state.remember(0, new, new):
            assert torch.equal(found, whole)
        if step in (3, 4, 20):
            stay = torch.arange(state.n_sentence)[torch.arange(state.n_sentence) != step % state.n_sentence]
            rows = (stay.unsqueeze(1) * n_row + torch.arange(n_row)).flatten()
            state.keep(Gaps.of(stay, stay.device))
            state.reorder(rows)
            whole = whole[stay]
    assert state.per_sentence["number"].tolist() == [1, 2]
