"""Search and sampling never break a character, even if pieces of the vocabulary end inside one."""

import random
from dataclasses import replace

import pytest
import torch
from fake_model import HashModel

from nmt.data.subwords import EOS
from nmt.decoding import fixed_search
from nmt.decoding.beam import BeamSettings, sample, search
from nmt.decoding.candidates import characters_of
from nmt.decoding.fixed_search import FixedSearch

SINGLE = [bytes([byte]) for byte in range(256)]
ACROSS = [
    " é".encode()[:2], "に真".encode()[:4], "に真".encode()[2:4], "真".encode()[1:], "😀a".encode()[2:], b"\xe3\xe3",
]  # fmt: skip
PIECES = [b"", b"", b"", *SINGLE, *ACROSS, "に".encode(), b" the"]
SETTINGS = {"length_penalty": "wu", "alpha": 1.0, "n_real": len(PIECES)}


def text_of(ids: list[int]) -> bytes:
    return b"".join(PIECES[i] for i in ids)


def is_utf8(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def sources(n: int) -> torch.Tensor:
    return torch.randint(3, 200, (n, 6), generator=torch.Generator().manual_seed(n))


def test_exactly_the_byte_sequences_of_utf8_are_allowed():
    characters = characters_of(PIECES)
    rng = random.Random(1)
    texts = [chr(rng.choice([rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)])).encode() for _ in range(500)]
    for raw in [*texts, *(bytes(rng.randrange(0x80, 256) for _ in range(rng.randint(1, 4))) for _ in range(500))]:
        state = torch.zeros(1, dtype=torch.long)
        for byte in raw:
            logits = torch.zeros(1, len(PIECES))
            characters.forbid(logits, state)
            if logits[0, 3 + byte] == -torch.inf:
                break
            state = characters.follow(state, torch.tensor([3 + byte]))
        else:
            may_end = torch.zeros(1, len(PIECES))
            characters.forbid(may_end, state)
            assert (may_end[0, EOS] == 0) == is_utf8(raw)
            continue
        assert not is_utf8(raw)


def test_finished_samples_have_whole_characters():
    model, n = HashModel(len(PIECES), sharpness=0.3), 10
    with torch.no_grad():
        model.table[:, EOS] += 3.0
    settings, max_len = BeamSettings(**SETTINGS, characters=characters_of(PIECES)), torch.arange(1, 101) % 40 + 1
    options = {"n": n, "seeds": [[seed] for seed in range(100)]}
    found = sample(model, sources(100), settings, max_len, **options)
    texts = [(text_of(h.ids), h.finished) for hypotheses in found for h in hypotheses]
    assert len(texts) == 1000 and sum(not raw.isascii() for raw, _ in texts) > 200
    assert all(is_utf8(raw) or not is_finished for raw, is_finished in texts)


@pytest.mark.parametrize("beam", [1, 4])
def test_beam_search_and_fixed_search_find_whole_characters(beam, monkeypatch):
    monkeypatch.setattr(fixed_search, "_FEWEST_ROWS", 1)
    model, settings = HashModel(len(PIECES), sharpness=1.5), BeamSettings(**SETTINGS, beam=beam, n_best=beam)
    src_seq, max_len = sources(30), torch.arange(30) % 9
    unrestricted = search(model, src_seq, settings, max_len)
    assert not all(is_utf8(text_of(h.ids)) for hypotheses in unrestricted for h in hypotheses)
    settings = replace(settings, characters=characters_of(PIECES))
    found = search(model, src_seq, settings, max_len)
    for hypotheses in found:
        # A cap may end all hypotheses of a sentence inside a character, or none.
        assert all(is_utf8(text_of(h.ids)) for h in hypotheses) or not any(h.finished for h in hypotheses)
    assert FixedSearch(model)(src_seq, settings, max_len) == found
