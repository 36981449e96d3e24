"""Recurrent models: formulas by hand, padding without effect, and steps equal to the forward pass."""

import pytest
import torch
import torch.nn.functional as F
from promises import (
    check_all_padding_source,
    check_autocast_to_bf16,
    check_search_steps,
    check_training,
    option_combinations,
)

from nmt.models.build import build_model
from nmt.models.lstm.Layers import reversal
from nmt.models.lstm.Models import FeedingDecoder, Seq2Seq
from nmt.models.lstm.Modules import Recurrence
from nmt.recipe.model_options import ModelConfig

N_VOCAB = 24
OPTIONS = {
    "architecture": ["seq2seq", "peeky", "attention"],
    "cell": ["lstm", "gru"],
    "n_rnn_layer": [1, 2, 3],
    "d_emb": [None, 5],
    "enc_direction": ["forward", "backward", "both"],
    "attn_score": ["dot", "general", "additive"],
    "input_feeding": [False, True],
    "variational_dropout": [False, True],
    "trg_emb_prj_weight_sharing": [True, False],
    "emb_src_trg_weight_sharing": [True, False],
    "scale_emb_or_prj": ["emb", "prj", "none"],
    "lexical_attn": [False, True],
}


COMBINATIONS = option_combinations(OPTIONS, 36)


def make(seed=3, **options) -> Seq2Seq:
    """A seeded tiny model in double precision and evaluation mode, with random biases."""
    options = {"d_model": 8, "architecture": "attention", **options}
    if options["architecture"] != "attention":
        of_attention = ("attn_score", "input_feeding", "lexical_attn")
        options = {name: value for name, value in options.items() if name not in of_attention}
    torch.manual_seed(seed)
    model = build_model(ModelConfig(**options), N_VOCAB, N_VOCAB).double().eval()
    assert isinstance(model, Seq2Seq)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.uniform_(parameter, -1.0, 1.0)
    return model


@torch.no_grad()
@pytest.mark.parametrize("options", COMBINATIONS)
def test_pair_gives_the_same_logits_alone_and_in_a_batch(batch, options):
    model, (src_seq, trg_seq) = make(**options), batch
    logits, attns = model(src_seq, trg_seq, return_attns=True)
    for row, (src, trg) in enumerate(zip(src_seq, trg_seq, strict=True)):
        n_src, n_trg = int((src != 0).sum()), int((trg != 0).sum())
        alone, alone_attns = model(src[None, :n_src], trg[None, :n_trg], return_attns=True)
        assert (logits[row, :n_trg] - alone[0]).abs().max() < 1e-10
        if model.attends:
            assert (attns.cross[:, row, :, :n_trg, :n_src] - alone_attns.cross[:, 0]).abs().max() < 1e-10
            assert attns.cross[:, row, :, :, n_src:].eq(0).all()
    assert attns.encoder is None and attns.decoder is None and (attns.cross is not None) == model.attends


@torch.no_grad()
@pytest.mark.parametrize("n", range(len(COMBINATIONS)))
def test_stepwise_logits_equal_teacher_forcing_under_beam_reordering(batch, n):
    model = make(**COMBINATIONS[n])
    src_seq, _ = batch
    torch.manual_seed(n)
    state = model.start(src_seq)
    pointers = {name: tensor.data_ptr() for name, tensor in state.per_sentence.items()}
    sentences, k = torch.arange(4), 3
    words = torch.randint(0, 24, (4, 1))  # search starts with one hypothesis a sentence
    assert (model.step(words[:, 0], state) - model(src_seq, words)[:, -1]).abs().max() < 1e-10
    state.reorder(sentences.repeat_interleave(k))
    assert {name: tensor.data_ptr() for name, tensor in state.per_sentence.items()} == pointers  # never copied
    check_search_steps(model, src_seq, state, words.repeat_interleave(k, 0), k, (3, 2, 4, 1, 2))


@torch.no_grad()
@pytest.mark.parametrize("feeding", [False, True])
@pytest.mark.parametrize("shared", [True, False])
def test_lexical_attention_adds_embeddings_of_attended_words(batch, shared, feeding):
    model = make(lexical_attn=True, input_feeding=feeding, d_emb=5, trg_emb_prj_weight_sharing=shared)
    lexicon = model.decoder.lexicon
    assert torch.equal(lexicon.fc.weight, torch.eye(*lexicon.fc.weight.shape))  # initially the identity
    lexicon.fc.weight.normal_()
    logits, attns = model(*batch, return_attns=True)
    words = model.encoder.src_word_emb(batch[0]) * (5**0.5 if shared else 1.0)
    model.decoder.lexicon = None
    attended = attns.cross[0, :, 0] @ words @ lexicon.fc.weight.T
    assert (logits - model(*batch) - attended @ model.output_weight.T).abs().max() < 1e-12


@torch.no_grad()
def test_shared_embeddings_are_scaled_at_the_input_or_at_the_logits(batch):
    def logits(**options):
        model = make(architecture="seq2seq", **options)
        model.decoder.readout.fc = None
        return model, model(*batch)

    plain, plain_logits = logits(scale_emb_or_prj="none")
    _, smaller = logits(scale_emb_or_prj="prj")
    assert torch.allclose(smaller * 8**0.5, plain_logits, rtol=0, atol=1e-12)
    scaled, larger = logits()
    for model in (plain, scaled):
        assert model.output_weight is model.embeddings[0].weight
    plain.embeddings[0].weight.mul_(8**0.5)
    assert torch.allclose(larger * 8**0.5, plain(*batch), rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", COMBINATIONS)
def test_training_depends_only_on_the_seed_and_uses_every_parameter(batch, options):
    check_training(make(**options, dropout=0.2), batch)


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("architecture", OPTIONS["architecture"])
def test_padding_only_source_gives_finite_logits_and_gradients(batch, architecture, train):
    check_all_padding_source(make(architecture=architecture, enc_direction="both").train(train), batch)


@torch.no_grad()
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_recurrence_follows_its_formula_and_padding_keeps_its_state(cell):
    torch.manual_seed(1)
    recurrence = Recurrence(ModelConfig(architecture="seq2seq", cell=cell), 3, 4).double()
    x, lengths = torch.randn(3, 5, 3).double(), (5, 2, 0)
    visible = torch.arange(5) < torch.tensor(lengths).unsqueeze(1)
    found, last = recurrence(x, recurrence.initial_state(x), visible)
    w, u = recurrence.cell.weight_ih, recurrence.cell.weight_hh
    b, d = recurrence.cell.bias_ih, recurrence.cell.bias_hh
    for row, length in enumerate(lengths):
        h = c = torch.zeros(4).double()
        for t in range(length):
            if cell == "lstm":
                i, f, g, o = (w @ x[row, t] + b + u @ h + d).chunk(4)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * c.tanh()
            else:
                (r, z, n), (r_h, z_h, n_h) = (w @ x[row, t] + b).chunk(3), (u @ h + d).chunk(3)
                z = (z + z_h).sigmoid()
                h = (1 - z) * (n + (r + r_h).sigmoid() * n_h).tanh() + z * h
            assert (found[row, t] - h).abs().max() < 1e-12
        for part, expected in zip(last, (h, c), strict=False):
            assert (part[row] - expected).abs().max() < 1e-12


@torch.no_grad()
@pytest.mark.parametrize("feeding", [False, True])
@pytest.mark.parametrize("kind", ["dot", "general", "additive"])
def test_attention_follows_its_formula(kind, feeding):
    model = make(attn_score=kind, input_feeding=feeding, trg_emb_prj_weight_sharing=False)
    src_seq, trg_seq = torch.randint(3, 24, (2, 5)), torch.randint(3, 24, (2, 4))
    _, memory, states = model.encoder(src_seq)
    (h, c), decoder = states[0], model.decoder
    score, cell, fc = decoder.enc_attn.score, decoder.layer_stack[0].rnn.cell, decoder.readout.fc
    hidden = torch.zeros(2, 8).double()
    logits, attns = model(src_seq, trg_seq, return_attns=True)
    for t in range(4):
        words = decoder.trg_word_emb.weight[trg_seq[:, t]]
        h, c = cell(torch.cat([words, hidden], 1) if feeding else words, (h, c))
        if kind == "dot":
            e = torch.einsum("bd,bsd->bs", h, memory)
        elif kind == "general":
            e = torch.einsum("bd,de,bse->bs", h, score.w_ks.weight, memory)
        else:
            inner = (h @ score.w_qs.weight.T).unsqueeze(1) + memory @ score.w_ks.weight.T + score.w_ks.bias
            e = inner.tanh() @ score.v.weight[0]
        a = e.exp() / e.exp().sum(1, keepdim=True)
        context = torch.einsum("bs,bsd->bd", a, memory)
        hidden = torch.tanh(torch.cat([h, context], 1) @ fc.weight.T + fc.bias)
        assert (attns.cross[0, :, 0, t] - a).abs().max() < 1e-12
        assert (logits[:, t] - hidden @ model.trg_word_prj.weight.T).abs().max() < 1e-12
    assert isinstance(decoder, FeedingDecoder) == feeding


@torch.no_grad()
def test_peeky_but_not_seq2seq_sees_the_last_state_at_every_step():
    src_seq, trg_seq = torch.randint(3, 24, (2, 5)), torch.randint(3, 24, (2, 4))
    for architecture, expected in (("peeky", True), ("seq2seq", False)):
        model = make(architecture=architecture)
        memory, states = model._encode(src_seq)
        changed = {name: tensor + 1.0 for name, tensor in memory.items()}
        outputs = [model.decoder(trg_seq, states, source)[0] for source in (memory, changed)]
        assert bool((outputs[0] - outputs[1]).abs().amax(-1).gt(1e-3).all()) == expected
        if expected:
            last = memory["last"].unsqueeze(1).expand(-1, 4, -1)
            h = model.decoder.layer_stack[0](torch.cat([model.decoder.embed(trg_seq), last], 2), states[0])
            x = torch.cat([h, last], 2)
            readout = torch.tanh(F.linear(x, model.decoder.readout.fc.weight, model.decoder.readout.fc.bias))
            assert (outputs[0] - readout).abs().max() < 1e-12


@torch.no_grad()
def test_backward_encoder_equals_forward_encoder_of_mirrored_source(batch):
    forward, backward = make(), make(enc_direction="backward")
    backward.load_state_dict({name.replace("ahead", "back"): w for name, w in forward.state_dict().items()})
    src_seq, trg_seq = batch
    mirror = reversal(src_seq != 0)
    assert torch.equal(mirror.gather(1, mirror), torch.arange(7).expand(4, 7))
    logits, attns = forward(src_seq.gather(1, mirror), trg_seq, return_attns=True)
    backward_logits, mirrored = backward(src_seq, trg_seq, return_attns=True)
    assert (logits - backward_logits).abs().max() < 1e-12
    back = mirrored.cross.gather(-1, mirror.view(1, 4, 1, 1, 7).expand_as(mirrored.cross))
    assert (attns.cross - back).abs().max() < 1e-12


@pytest.mark.parametrize("feeding", [False, True])
def test_variational_dropout_drops_the_same_units_at_every_word(feeding):
    model = make(architecture="attention", input_feeding=feeding, variational_dropout=True, dropout=0.5, n_rnn_layer=2)
    zeros = {variational: [] for variational in (True, False)}
    for variational in zeros:
        dropping = make(input_feeding=feeding, variational_dropout=variational, dropout=0.5, n_rnn_layer=2).train()
        dropping.load_state_dict(model.state_dict())
        src_seq, trg_seq = torch.randint(3, 24, (16, 3)), torch.randint(3, 24, (16, 9))
        hidden = dropping.decode_hidden(src_seq, trg_seq) == 0
        zeros[variational] = hidden.double().mean(1)  # how often each unit of each sentence was dropped
    assert zeros[True].unique().tolist() == [0.0, 1.0]
    assert 0.4 < zeros[True].mean() < 0.6
    assert ((zeros[False] > 0) & (zeros[False] < 1)).double().mean() > 0.9


@torch.no_grad()
def test_general_score_starts_as_the_dot_product(batch):
    torch.manual_seed(1)
    model = build_model(ModelConfig(architecture="attention", d_model=8, attn_score="general"), N_VOCAB, N_VOCAB).eval()
    plain = build_model(ModelConfig(architecture="attention", d_model=8), N_VOCAB, N_VOCAB).eval()
    missing, unexpected = plain.load_state_dict(model.state_dict(), strict=False)
    assert (missing, unexpected) == ([], ["decoder.enc_attn.score.w_ks.weight"])
    assert (model(*batch) - plain(*batch)).abs().max() < 1e-5


def test_new_lstm_has_forget_bias_and_orthogonal_weights():
    torch.manual_seed(0)
    model = build_model(ModelConfig(architecture="seq2seq", d_model=16, forget_bias=2.0), 24, 24)
    cell = model.encoder.layer_stack[0].ahead.cell
    assert cell.bias_ih.view(4, 16).mean(1).tolist() == [0.0, 2.0, 0.0, 0.0] and not cell.bias_hh.any()
    for gate in cell.weight_hh.view(4, 16, 16):
        assert torch.allclose(gate @ gate.T, torch.eye(16), atol=1e-5)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("architecture", OPTIONS["architecture"])
def test_autocast_to_bf16_trains_and_decodes(batch, architecture, cell):
    model = make(architecture=architecture, cell=cell, enc_direction="both").float()
    exact = check_autocast_to_bf16(model, batch)
    half = model.eval().to(torch.bfloat16)
    state = half.start(batch[0])
    found = half.step(batch[1][:, 0], state)
    assert found.dtype == torch.bfloat16
    assert (found.float() - exact[:, 0]).abs().max() < 0.1 * exact.abs().max()
