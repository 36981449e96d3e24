"""The search in fixed shapes equals the beam search, with and without replay, and a GPU can record its steps."""

import pytest
import torch
from fake_model import HashModel
from small_search import subwords_of, tiny_model
from tape import Taping

from nmt.data.subwords import EOS, PAD
from nmt.decoding import fixed_search
from nmt.decoding import translator as translating
from nmt.decoding.beam import BeamSettings, search
from nmt.decoding.fixed_search import FixedSearch
from nmt.decoding.request import Request
from nmt.decoding.translator import Translator
from nmt.errors import MachineError
from nmt.recipe.decode_options import DecodeConfig

V = 24
MODELS = [
    {},
    {"norm": "pre", "position": "rotary", "n_kv_head": 1, "ffn": "swiglu", "rotary_enc_attn": True},
    {"position": "learned", "n_position": 12, "lexical_attn": True},
    {"n_position": 9},  # fewer than translations need
    {"architecture": "seq2seq", "cell": "gru"},
    {"architecture": "attention", "input_feeding": True},
]


@pytest.fixture(autouse=True)
def no_minimum_of_rows(monkeypatch):
    """Finished sentences are dropped however few rows remain."""
    monkeypatch.setattr(fixed_search, "_FEWEST_ROWS", 1)


def batch(n: int, longest: int, seed: int = 1):
    """n sentences of up to `longest` subwords, and caps on their translations, which some reach."""
    generator = torch.Generator().manual_seed(seed)
    n_src = torch.randint(0, longest + 1, (n,), generator=generator)
    src_seq = torch.randint(3, V, (n, int(n_src.max()) + 1), generator=generator)
    place = torch.arange(src_seq.size(1))
    src_seq[place == n_src.unsqueeze(1)] = EOS
    src_seq[place > n_src.unsqueeze(1)] = PAD
    return src_seq, n_src + torch.randint(0, 4, (n,), generator=generator)


def beam_settings(**changes):
    settings = {"beam": 4, "length_penalty": "wu", "alpha": 1.0}
    return BeamSettings(**{**settings, **changes})


def assert_same(found, expected):
    assert [[h.ids for h in sentence] for sentence in found] == [[h.ids for h in sentence] for sentence in expected]
    for a, b in zip([h for hs in found for h in hs], [h for hs in expected for h in hs], strict=True):
        assert (a.score, a.normalised) == pytest.approx((b.score, b.normalised), abs=1e-12)
        assert a.finished == b.finished


def compare(model, fixed, n=11, longest=9, seed=1, **changes):
    src_seq, max_len = batch(n, longest, seed)
    settings = beam_settings(**changes)
    assert_same(fixed(src_seq, settings, max_len), search(model, src_seq, settings, max_len))


def taped_search(model):
    """A search whose steps are recorded and replayed."""
    fixed = FixedSearch(model)
    fixed._recorder = Taping(lambda: fixed._buffers._memory)
    return fixed


@pytest.mark.parametrize("is_taped", [False, True])
@pytest.mark.parametrize("options", MODELS)
def test_fixed_search_equals_the_search(options, is_taped, monkeypatch):
    monkeypatch.setattr(fixed_search, "FIRST_ROOM", 4)  # too little, so that buffers must grow
    model = tiny_model(V, **options)
    fixed = taped_search(model) if is_taped else FixedSearch(model)
    for seed, longest in ((1, 11), (2, 6), (3, 11))[: 3 if is_taped else 2]:
        compare(model, fixed, longest=longest, seed=seed)
    compare(model, fixed, n=3, beam=1)
    if is_taped:
        assert fixed._recorder.n_replayed > fixed._recorder.n_recorded > 5


@pytest.mark.parametrize(
    "changes",
    [
        {"length_penalty": "average", "alpha": 0.7},
        {"length_penalty": "none", "alpha": 0.0},
        {"n_best": 4},
        {"beam": 2, "n_best": 2},
        {"beam": V + 3, "n_best": 5},
        {"n_real": 20},
    ],
)
def test_fixed_search_equals_the_search_for_all_settings(changes):
    model = tiny_model(V)
    compare(model, taped_search(model), **changes)


def test_recordings_are_reused_by_later_batches():
    model = tiny_model(V)
    fixed = taped_search(model)
    for seed in range(2):
        compare(model, fixed, seed=seed)
    n_recorded = fixed._recorder.n_recorded
    for seed in range(2):
        compare(model, fixed, seed=seed)
    assert fixed._recorder.n_recorded == n_recorded


def test_finished_sentences_make_steps_smaller():
    model = HashModel(V, seed=3, sharpness=3.0)
    src_seq, _ = batch(64, 9)
    max_len = torch.arange(64)
    found = FixedSearch(model)(src_seq, beam_settings(), max_len)
    rows = model.rows_of_step
    assert rows[0] == 64 * 4 and rows[-1] < 16 * 4 and len(set(rows)) > 4
    assert_same(found, search(model, src_seq, beam_settings(), max_len))


def test_search_works_again_after_an_error():
    model = tiny_model(V)
    fixed = taped_search(model)
    compare(model, fixed)
    weight = model.trg_word_prj.weight.detach().clone()
    with torch.no_grad():
        model.trg_word_prj.weight.fill_(torch.nan)
    src_seq, max_len = batch(5, 4)
    with pytest.raises(MachineError, match="not finite"):
        fixed(src_seq, beam_settings(), max_len)
    with torch.no_grad():
        model.trg_word_prj.weight.copy_(weight)
    compare(model, fixed)


def test_translator_with_fixed_search_gives_the_same_texts(monkeypatch):
    subwords = subwords_of("the old ship left")
    model = tiny_model(subwords.trg.n_vocab)
    config = DecodeConfig(beam=3, n_best=2, max_len_a=0.0, max_len_b=6)
    requests = ["old ship", "the left", "", Request("the ship", prefix="the"), "ship"]
    expected = list(Translator(model, subwords, config).translate(requests))
    fixed, n_searched = FixedSearch(model), []
    monkeypatch.setattr(translating, "search", lambda *args, **kwargs: n_searched.append(1) or search(*args, **kwargs))
    translator = Translator(model, subwords, config, fixed=fixed)
    found = list(translator.translate([request for request in requests if request != requests[3]]))
    assert not n_searched
    assert [out.texts for out in found] == [out.texts for n, out in enumerate(expected) if n != 3]
    (found,) = translator.translate(requests[3:4])
    assert n_searched and found.texts == expected[3].texts
