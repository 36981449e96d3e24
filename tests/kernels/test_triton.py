"""The kernels in Triton equal their formulas: on a GPU, or without one in Triton's interpreter if that is installed."""

import functools
import importlib
import importlib.util

import pytest
import torch

from nmt import ops
from nmt.data.subwords import EOS, PAD
from nmt.decoding import beam, fixed_search
from nmt.decoding.beam import BeamSettings
from nmt.decoding.candidates import Characters
from nmt.decoding.fixed_search import Buffers, Table
from nmt.kernels import choice, on_gpu, spans
from nmt.masks import Packing
from nmt.models.build import build_model
from nmt.recipe.model_options import ModelConfig

# The thread of torch that computes gradients may start with a matrix product.
pytestmark = pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS, but there was no current CUDA context")
# Lengths of sentences on both sides: some are empty, and some are longer than a block.
QUERIES, KEYS = (3, 70, 1, 0, 20, 5, 31), (5, 20, 0, 2, 40, 130, 3)


def dtypes(device):
    """Data types of the kernels on a device: the interpreter multiplies no bf16."""
    return (torch.float32, torch.float16, torch.bfloat16) if device.type == "cuda" else (torch.float32, torch.float16)


TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def packed(lengths, device):
    """Packed sentences of these lengths."""
    start = torch.tensor([0, *lengths]).cumsum(0).to(device, torch.int32)
    return Packing.of(start, max(lengths), sum(lengths))


def formula(q, k, v, mask, scale):
    """Attention in double precision: (..., T, d), (..., S, d), (..., S, d_v), (..., T, S)."""
    share = torch.where(mask, torch.exp(scale * q @ k.transpose(-1, -2)), 0.0)
    total = share.sum(-1, keepdim=True)
    return share / torch.where(total == 0, 1.0, total) @ v


def relative_error(found, expected):
    return float((found.detach().double() - expected.detach()).norm() / expected.detach().norm())


@pytest.mark.parametrize(("n_head", "n_kv_head", "d_k", "d_v"), [(2, 2, 64, 64), (4, 2, 16, 32)])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_in_spans_and_its_gradient_equal_the_formula(causal, n_head, n_kv_head, d_k, d_v, device):
    torch.manual_seed(1)
    queries = packed(QUERIES, device)
    keys = queries if causal else packed(KEYS, device)
    sentence, key_sentence = queries.sentence, keys.sentence
    n_query, n_key = len(sentence), len(key_sentence)
    layout = spans.Spans.within(queries, keys, causal=causal)
    mask = sentence.unsqueeze(1) == key_sentence
    mask = mask.tril() if causal else mask
    for dtype in dtypes(device):
        # Queries are a part of a wider product, as in a model.
        wide = torch.randn(n_query, 3, n_head, d_k, device=device).to(dtype)
        q, k, v = leaves = [
            x.to(device, dtype).requires_grad_()
            for x in (wide[:, 1], torch.randn(n_key, n_kv_head, d_k), torch.randn(n_key, n_kv_head, d_v))
        ]
        exact = [x.detach().double().requires_grad_() for x in leaves]
        by_head = [x.transpose(0, 1) for x in exact]
        by_head[1:] = [x.repeat_interleave(n_head // n_kv_head, 0) for x in by_head[1:]]
        expected = formula(*by_head, mask, d_k**-0.5).transpose(0, 1)
        found = spans.attend(q, k, v, layout, d_k**-0.5)
        d_out = torch.randn_like(found)
        gradients = torch.autograd.grad(expected, exact, d_out.double())
        repeats = [torch.autograd.grad(spans.attend(q, k, v, layout, d_k**-0.5), leaves, d_out) for _ in range(2)]
        assert relative_error(found, expected) < TOLERANCE[dtype]
        assert all(relative_error(a, b) < TOLERANCE[dtype] for a, b in zip(repeats[0], gradients, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(*repeats, strict=True))
        assert causal or not found[sentence == 2].any()  # this sentence has no keys


def test_operators_pass_the_checks_of_torch_library(device):
    layout = packed((3, 4), device)
    layout = spans.Spans.within(layout, layout, causal=False)
    q, k, v = (torch.randn(7, 2, 16, device=device, requires_grad=True) for _ in range(3))
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.nmt.attend_in_spans.default, (q, k, v, *layout, 0.25), test_utils=tests)
    inputs = [x.detach() for x in (q, k, v)]
    found = torch.ops.nmt.attend_in_spans(*inputs, *layout, 0.25)
    arguments = (torch.randn_like(found[0]), *inputs, *found, *layout, 0.25)
    torch.library.opcheck(torch.ops.nmt.attend_in_spans_backward.default, arguments, test_utils=tests[::2])


@pytest.mark.parametrize(
    ("n_row", "n_head", "n_kv_head", "n_key"),
    [(4, 2, 2, 130), (3, 4, 2, 70), (1, 4, 1, 5), (16, 4, 1, 64), (40, 1, 1, 9)],
)
def test_attention_of_hypotheses_equals_the_masked_formula(n_row, n_head, n_kv_head, n_key, device):
    search = importlib.import_module("nmt.kernels.search_triton")
    torch.manual_seed(2)
    for dtype in dtypes(device):
        q = torch.randn(3, n_row, n_head, 16, device=device).to(dtype).transpose(1, 2)
        k, v = (torch.randn(3, n_kv_head, n_key, width, device=device).to(dtype) for width in (16, 32))
        for shape in ((3, 1, n_row, n_key), (3, 1, 1, n_key), (1, 1, n_row, n_key)):
            mask = torch.rand(shape, device=device) < 0.3
            mask[0, 0, 0] &= shape[0] == 1  # else one query is fully masked
            mask[..., 64:] &= torch.rand(shape, device=device)[..., 64:] < 0.01  # fully masked blocks
            k_all, v_all = (x.double().repeat_interleave(n_head // n_kv_head, 1) for x in (k, v))
            expected = formula(q.double(), k_all, v_all, mask, 0.3)
            found = search.attend(q, k, v, search.seen_keys(mask), 0.3)
            assert relative_error(found, expected) < TOLERANCE[dtype]
            assert shape[0] == 1 or not found[0, :, 0].any()


@pytest.mark.parametrize(("n_column", "width"), [(320, 64), (8000, 64), (10_040, 8), (1000, 64)])
def test_pass_over_logits_finds_log_total_and_best_tokens(n_column, width, device, monkeypatch):
    search = importlib.import_module("nmt.kernels.search_triton")
    torch.manual_seed(3)
    never = torch.tensor([0, 2, n_column - 1], device=device)
    characters = Characters(torch.zeros(1, n_column, device=device))  # all tokens have whole ones
    state = torch.zeros(5, dtype=torch.long, device=device)
    for dtype in dtypes(device):
        logits = (4 * torch.randn(5, n_column, device=device)).to(dtype)
        logits[0, 7] = -torch.inf
        logits[1, 0] = 30.0  # not allowed, but part of the total
        allowed = torch.ones(n_column, dtype=torch.uint8, device=device).index_fill_(0, never, 0)
        log_total, maxima = search.scan(logits, allowed, width)
        torch.testing.assert_close(log_total.double(), logits.double().logsumexp(1), rtol=1e-6, atol=1e-6)
        allowed_logits = logits.clone().index_fill_(1, never, -torch.inf)
        assert torch.equal(maxima, torch.stack([block.amax(1) for block in allowed_logits.split(width, 1)], 1))
        expected = beam.topk_tokens(logits.double(), 5, never, characters, state)
        monkeypatch.setattr(on_gpu, "takes", lambda *_: True)
        found = beam.topk_tokens(logits.clone(), 5, never, characters, state)
        monkeypatch.undo()
        assert torch.equal(found.best.double(), expected.best)
        torch.testing.assert_close(found.normaliser.double(), expected.normaliser, rtol=1e-6, atol=1e-6)


def by_kernels(table, logits):
    with pytest.MonkeyPatch.context() as forced:
        forced.setattr(on_gpu, "takes_choice", lambda *_: True)
        return table.finish_step(logits)


@pytest.mark.parametrize(
    ("n_column", "changes"),
    [
        (1000, {}),
        (1000, {"n_best": 4}),
        (40_000, {"beam": 3, "n_best": 2, "length_penalty": "wu"}),  # in blocks of twice the usual width
        (16, {"beam": 1}),
        (320, {"beam": 8, "n_best": 5, "alpha": 0.3}),
    ],
)
def test_end_of_a_step_equals_that_of_the_search(n_column, changes, device, monkeypatch):
    importlib.import_module("nmt.kernels.choice_triton")
    monkeypatch.setattr(on_gpu, "takes", lambda *_: False)  # the reference uses no kernels
    defaults = {"beam": 4, "length_penalty": "average", "alpha": 1.0}
    settings = BeamSettings(**{**defaults, "n_real": n_column - 3, **changes})
    generator = torch.Generator().manual_seed(4)
    for dtype in dtypes(device):
        max_len = torch.arange(7, device=device) % 5
        reference, table = (Table(settings, Buffers(device), max_len, 6, torch.float32) for _ in range(2))
        for step in range(5):
            logits = 5 * torch.randn(7 * settings.beam, n_column, generator=generator)
            logits[torch.rand(len(logits), generator=generator) < 0.2, EOS] = 14.0
            logits[:, PAD] = 30.0  # the best, but not allowed
            logits = logits.to(device, dtype)
            expected, found = reference.finish_step(logits.clone()), by_kernels(table, logits)
            unfinished = reference.per_sentence["score"].flatten() > -torch.inf
            for name in reference.per_sentence:
                torch.testing.assert_close(table.per_sentence[name], reference.per_sentence[name], rtol=1e-6, atol=1e-5)
            for name in ("ended", "forced"):
                torch.testing.assert_close(table.notes[name], reference.notes[name], rtol=1e-6, atol=1e-5)
            if dtype == torch.float32:  # half precision has ties, and any may be chosen
                assert torch.equal(found[unfinished], expected[unfinished])
                assert torch.equal(table.last[unfinished], reference.last[unfinished])
            for name in ("token", "parent"):
                note = table.notes[name][:, step].flatten()
                assert torch.equal(note, table.last if name == "token" else found % settings.beam)
            assert torch.equal(found // settings.beam, torch.arange(len(found), device=device) // settings.beam)
            assert table.last.min() >= 0 and table.last.max() < n_column
            assert table.n_step == step + 1
        assert table.per_sentence["done"].all()


@pytest.mark.parametrize("changes", [{}, {"n_best": 4}, {"beam": 1}])
def test_search_with_kernels_equals_the_search(changes, device, monkeypatch):
    importlib.import_module("nmt.kernels.choice_triton")
    torch.manual_seed(6)
    config = ModelConfig(d_model=32, n_head=2, d_inner=64, n_enc_layer=1, n_dec_layer=1)
    model = build_model(config, 96, 96, PAD).eval().to(device)
    src_seq = torch.randint(3, 90, (9, 5), device=device)
    src_seq[:, -1] = EOS
    defaults = {"beam": 4, "length_penalty": "wu", "alpha": 1.0, "n_real": 93}
    settings, max_len = BeamSettings(**{**defaults, **changes}), torch.tensor([9, 2, 0, 7, 9, 1, 5, 6, 3])
    expected = beam.search(model, src_seq, settings, max_len)
    n_step, end_of_step = [], choice.end_of_step
    monkeypatch.setattr(fixed_search, "_FEWEST_ROWS", 1)
    monkeypatch.setattr(on_gpu, "takes_choice", lambda *_: True)
    monkeypatch.setattr(ops, "end_of_step", lambda *args: n_step.append(1) or end_of_step(*args))
    found = fixed_search.FixedSearch(model)(src_seq, settings, max_len)
    assert n_step  # on a GPU not for every step: steps are replayed
    for hypotheses, expected_hypotheses in zip(found, expected, strict=True):
        assert [(h.ids, h.finished) for h in hypotheses] == [(h.ids, h.finished) for h in expected_hypotheses]
        assert [h.score for h in hypotheses] == pytest.approx([h.score for h in expected_hypotheses], abs=1e-4)


def test_unsupported_tensors_are_not_given_to_kernels(monkeypatch):
    """Tested without a GPU, by tensors that claim to be on one."""
    monkeypatch.setattr(on_gpu, "works", lambda device: True)
    meta = functools.partial(torch.empty, device="meta")
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda _: True))
    q, k, v = meta(1, 4, 4, 64), meta(1, 4, 9, 64), meta(1, 4, 9, 64)
    assert on_gpu.takes_hypotheses(q, k, v) and on_gpu.takes_hypotheses(meta(1, 4, 16, 64), meta(1, 1, 9, 64), v)
    assert not on_gpu.takes_hypotheses(meta(1, 4, 17, 64), meta(1, 1, 9, 64), v)  # more rows than a tile has
    assert not on_gpu.fits(meta(1, 4, 4, 24), meta(1, 4, 9, 24), v)
    assert not on_gpu.fits(q.half(), k, v)
    assert not on_gpu.fits(q.double(), k.double(), v.double())
    scores = meta(3, 8)
    assert on_gpu.takes_choice(meta(24, 99).bfloat16(), 8, scores)
    assert not on_gpu.takes_choice(meta(27, 99), 9, scores) and not on_gpu.takes_choice(
        meta(24, 99), 8, scores.double()
    )
    wide = meta(1, 4, 4, 128)
    assert not on_gpu.fits(wide, wide, wide) and on_gpu.fits(*3 * [wide.bfloat16()])
    assert spans.are_near(meta(1 << 21, 8, 64), meta(1 << 15, 8, 64)) and not spans.are_near(meta(1 << 22, 8, 64))
    monkeypatch.setattr(on_gpu, "works", lambda device: False)
    assert not on_gpu.takes_hypotheses(q, k, v) and not on_gpu.takes(v)
