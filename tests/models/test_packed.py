"""Packed sentences give the losses and gradients of padded ones."""

import numpy as np
import pytest
import torch
from torch import nn

from nmt.data.arrays import Ragged
from nmt.data.batches import end_to_end, make_batch, make_packed
from nmt.data.subwords import PAD
from nmt.masks import PackedMask
from nmt.models.build import build_model as build
from nmt.recipe.model_options import ModelConfig
from nmt.recipe.options import Recipe
from nmt.recipe.training_options import RegularizeConfig
from nmt.training.engine import Engine, Objective
from nmt.training.materials import compile_parts

SIZES = {"d_model": 16, "d_inner": 32, "n_enc_layer": 2, "n_dec_layer": 2, "n_head": 4, "dropout": 0.0, "n_position": 8}
N_PLACE, LONGEST = 40, 12
COMPILED = {"data": {"max_len": LONGEST - 1}, "model": {"attn_dropout": 0.0}, "batch": {"packed": True}}


class Pairs:
    """Random pairs with the method of a corpus."""

    def __init__(self, lengths):
        rng = np.random.default_rng(1)
        self.all = [[rng.integers(4, 20, n) for n in pair] for pair in lengths]

    def picked(self, rows):
        return tuple(Ragged.of([self.all[row][side] for row in rows]) for side in (0, 1))


PAIRS = Pairs([(3, 5), (11, 2), (1, 7), (6, 6)])


def model_of(**options):
    torch.manual_seed(2)
    model = build(ModelConfig(**{**SIZES, **options}), 20, 20, PAD).double().train()
    for name, parameter in model.named_parameters():
        if name.endswith("conv.weight"):  # zero at first
            nn.init.uniform_(parameter, -0.5, 0.5)
    return model


def loss_and_gradient(model, batch, longest=LONGEST, **regularize):
    model.zero_grad()
    packing = Engine.packing_of(batch, longest)
    objective = Objective(model, 0.1, RegularizeConfig(**regularize))
    counts = {"n_gold": batch.n_gold}
    loss, _ = objective(batch.src_seq, batch.trg_seq, batch.gold, packing, **counts)
    loss.backward()
    return loss.detach(), [p.grad.clone() for p in model.parameters()]


@pytest.fixture
def own_kernels(kernels_asked):
    switch = pytest.importorskip("nmt.kernels.switch")
    if reason := switch.why_not():
        pytest.skip(f"no kernels here: {reason}")
    switch.use(True)
    yield kernels_asked
    switch.use(False)


TWO_PASSES = [{"simcut": 3.0, "simcut_p": 1 - 1e-9}, {"r_drop": 5.0}]  # every word is cut out, so nothing is random
OPTIONS = [
    {},
    {"position": "learned", "norm": "pre"},
    {"position": "rotary", "rotary_enc_attn": True, "prj_transform": True},
    {"n_kv_head": 2, "qk_norm": True, "norm_kind": "rms", "ffn": "swiglu"},
    {"enc_conv": 5, "norm": "pre"},
    {"lexical_attn": True},
    {"lexical_attn": True, "position": "rotary", "rotary_enc_attn": True},
]


@pytest.mark.parametrize(
    ("options", "regularize"), [*((case, {}) for case in OPTIONS), *(({}, case) for case in TWO_PASSES)]
)
def test_packed_batch_equals_padded_batch(options, regularize):
    model, rows = model_of(**options), np.arange(4)
    loss, gradient = loss_and_gradient(model, make_batch(*PAIRS.picked(rows)), **regularize)
    packed = make_packed(*PAIRS.picked(rows), N_PLACE, 5, LONGEST)
    packed_loss, packed_gradient = loss_and_gradient(model, packed, **regularize)
    torch.testing.assert_close(packed_loss, loss, rtol=0, atol=1e-12)
    for expected, found in zip(gradient, packed_gradient, strict=True):
        torch.testing.assert_close(expected, found, rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("regularize", [{}, *TWO_PASSES])
def test_kernels_on_packed_batch_equal_padded_batch(options, regularize, own_kernels, monkeypatch):
    monkeypatch.delattr(PackedMask, "matrix")  # which kernels do not need
    model, padded = model_of(**options), make_batch(*PAIRS.picked(np.arange(4)))
    loss, gradient = loss_and_gradient(model, padded, **regularize)  # in fp64, for which there are no kernels
    assert not own_kernels["attend"]
    found, grads = loss_and_gradient(model.float(), end_to_end(padded), None, **regularize)
    assert own_kernels["attend"] and own_kernels["attend_backward"]
    torch.testing.assert_close(found.double(), loss, rtol=1e-6, atol=0)
    for grad, exact in zip(grads, gradient, strict=True):
        assert float((grad.double() - exact).norm()) <= 3e-6 * float(exact.norm()) + 1e-6


def test_packed_batches_have_one_shape_and_cover_their_row():
    batches = [make_packed(*PAIRS.picked(np.array(rows)), N_PLACE, 5, LONGEST) for rows in ([0], [1, 2], [0, 1, 2, 3])]
    for name in ("src_seq", "trg_seq", "gold", "src_start", "trg_start"):
        assert len({getattr(batch, name).shape for batch in batches}) == 1
    for batch in batches:
        for start in (batch.src_start, batch.trg_start):
            steps = start.diff()
            assert start[0] == 0 and start[-1] == N_PLACE and steps.min() >= 0 and steps.max() <= LONGEST


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # which the compiler reads
def test_packed_batches_are_compiled_once_without_graph_breaks(monkeypatch):
    """A counting backend sees one graph for each stack, whatever the sentences."""
    options = {"position": "rotary", "enc_conv": 3, "n_enc_layer": 1, "n_dec_layer": 1}
    model, graphs, compile_with = model_of(**options), [], nn.Module.compile

    def count(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    monkeypatch.setattr(nn.Module, "compile", lambda self, **_: compile_with(self, backend=count, fullgraph=True))
    compile_parts(model, Recipe.model_validate({"name": "packed", **COMPILED, "train": {"compile": True}}))
    batches = [make_packed(*PAIRS.picked(np.array(rows)), N_PLACE, 5, LONGEST) for rows in ([1, 2], [0, 1, 2, 3])]
    losses = [loss_and_gradient(model, batch)[0] for batch in batches]
    assert len(graphs) == 2
    # On a GPU, torch 2.11 confuses start[1:] with start, so positions are computed before compilation.
    assert not any("bucketize" in str(node.target) for graph in graphs for node in graph.graph.nodes)
    plain = model_of(**options)
    for loss, batch in zip(losses, batches, strict=True):
        torch.testing.assert_close(loss, loss_and_gradient(plain, batch)[0], rtol=0, atol=1e-12)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="flash attention of packed rows needs a GPU")
@pytest.mark.parametrize("n_kv_head", [4, 2])
def test_gpu_kernel_for_packed_rows_equals_plain_attention(n_kv_head):
    model = model_of(n_kv_head=n_kv_head, d_model=64).float().cuda()
    results = []
    for make in (make_batch, lambda *args: make_packed(*args, N_PLACE, 5, LONGEST)):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            results.append(loss_and_gradient(model, make(*PAIRS.picked(np.arange(4))).to(torch.device("cuda"))))
    (loss, gradient), (packed_loss, packed_gradient) = results
    torch.testing.assert_close(packed_loss, loss, rtol=2e-2, atol=0)
    for expected, found in zip(gradient, packed_gradient, strict=True):
        assert torch.isfinite(found).all() and float((expected - found).norm()) <= 0.05 * float(expected.norm()) + 1e-3
