"""The search in fixed shapes is the search, whether its steps are made or replayed, and a GPU can record them."""

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
    {"n_position": 9},  # of which translations need more
    {"architecture": "seq2seq", "cell": "gru"},
    {"architecture": "attention", "input_feeding": True},
]


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Sentences leave however few go on."""
    monkeypatch.setattr(fixed_search, "_FEWEST_ROWS", 1)


def batch(n: int, longest: int, seed: int = 1):
    """n sentences of up to so many subwords, and how long their translations may be: some stop there."""
    generator = torch.Generator().manual_seed(seed)
    n_src = torch.randint(0, longest + 1, (n,), generator=generator)
    src_seq = torch.randint(3, V, (n, int(n_src.max()) + 1), generator=generator)
    place = torch.arange(src_seq.size(1))
    src_seq[place == n_src.unsqueeze(1)] = EOS
    src_seq[place > n_src.unsqueeze(1)] = PAD
    return src_seq, n_src + torch.randint(0, 4, (n,), generator=generator)


def how(**changes):
    settings = {"beam": 4, "length_penalty": "wu", "alpha": 1.0}
    return BeamSettings(**{**settings, **changes})


def assert_same(found, wanted):
    assert [[one.ids for one in sentence] for sentence in found] == [[one.ids for one in its] for its in wanted]
    for a, b in zip([one for its in found for one in its], [one for its in wanted for one in its], strict=True):
        assert (a.score, a.normalised) == pytest.approx((b.score, b.normalised), abs=1e-12)
        assert a.finished == b.finished


def compare(model, fixed, n=11, longest=9, seed=1, **changes):
    src_seq, max_len = batch(n, longest, seed)
    asked = how(**changes)
    assert_same(fixed(src_seq, asked, max_len), search(model, src_seq, asked, max_len))


def taped(model):
    """A search whose steps are recorded and replayed."""
    fixed = FixedSearch(model)
    fixed._recorder = Taping(lambda: fixed._buffers._memory)
    return fixed


@pytest.mark.parametrize("is_taped", [False, True])
@pytest.mark.parametrize("options", MODELS)
def test_it_finds_what_the_search_finds(options, is_taped, monkeypatch):
    monkeypatch.setattr(fixed_search, "FIRST_ROOM", 4)  # so that there is not room enough
    model = tiny_model(V, **options)
    fixed = taped(model) if is_taped else FixedSearch(model)
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
def test_it_finds_it_however_it_is_asked(changes):
    model = tiny_model(V)
    compare(model, taped(model), **changes)


def test_recordings_serve_the_batches_to_come():
    model = tiny_model(V)
    fixed = taped(model)
    for seed in range(2):
        compare(model, fixed, seed=seed)
    n_recorded = fixed._recorder.n_recorded
    for seed in range(2):
        compare(model, fixed, seed=seed)
    assert fixed._recorder.n_recorded == n_recorded


def test_sentences_leave_so_that_steps_get_smaller():
    model = HashModel(V, seed=3, sharpness=3.0)
    src_seq, _ = batch(64, 9)
    max_len = torch.arange(64)
    found = FixedSearch(model)(src_seq, how(), max_len)
    rows = model.rows_of_step
    assert rows[0] == 64 * 4 and rows[-1] < 16 * 4 and len(set(rows)) > 4
    assert_same(found, search(model, src_seq, how(), max_len))


def test_after_an_error_nothing_of_it_is_left():
    model = tiny_model(V)
    fixed = taped(model)
    compare(model, fixed)
    weight = model.trg_word_prj.weight.detach().clone()
    with torch.no_grad():
        model.trg_word_prj.weight.fill_(torch.nan)
    src_seq, max_len = batch(5, 4)
    with pytest.raises(MachineError, match="not finite"):
        fixed(src_seq, how(), max_len)
    with torch.no_grad():
        model.trg_word_prj.weight.copy_(weight)
    compare(model, fixed)


def test_a_translator_finds_by_it_what_it_finds_without(monkeypatch):
    subwords = subwords_of("the old ship left")
    model = tiny_model(subwords.trg.n_vocab)
    config = DecodeConfig(beam=3, n_best=2, max_len_a=0.0, max_len_b=6)
    asked = ["old ship", "the left", "", Request("the ship", prefix="the"), "ship"]
    wanted = list(Translator(model, subwords, config).translate(asked))
    fixed, n_searched = FixedSearch(model), []
    monkeypatch.setattr(translating, "search", lambda *args, **how: n_searched.append(1) or search(*args, **how))
    translator = Translator(model, subwords, config, fixed=fixed)
    found = list(translator.translate([one for one in asked if one != asked[3]]))
    assert not n_searched
    assert [one.texts for one in found] == [one.texts for n, one in enumerate(wanted) if n != 3]
    (found,) = translator.translate(asked[3:4])
    assert n_searched and found.texts == wanted[3].texts
