"""The layers, and the whole model built of them, equal those of torch.nn with copied weights."""

import pytest
import torch
from torch import Tensor, nn

from nmt.models.transformer.SubLayers import MultiHeadAttention, PositionwiseFeedForward


def copy_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    theirs.in_proj_weight.copy_(torch.cat([ours.w_qs.weight, ours.w_ks.weight, ours.w_vs.weight]))
    theirs.in_proj_bias.copy_(torch.cat([ours.w_qs.bias, ours.w_ks.bias, ours.w_vs.bias]))
    theirs.out_proj.load_state_dict(ours.fc.state_dict())


def copy_feed_forward(ours: PositionwiseFeedForward, theirs: nn.Module) -> None:
    theirs.linear1.load_state_dict(ours.w_1.state_dict())
    theirs.linear2.load_state_dict(ours.w_2.state_dict())


@torch.no_grad()
def torch_layer(ours, kind, norm, ffn):
    """A layer of torch.nn with the weights of ours, in training mode so that its fast path is off; dropout is 0."""
    theirs = kind(
        16, 4, 24, dropout=0.0, activation=ffn, layer_norm_eps=1e-6, batch_first=True, norm_first=norm == "pre"
    ).double()
    parts = [("slf_attn", "self_attn"), ("enc_attn", "multihead_attn")][: 2 if hasattr(ours, "enc_attn") else 1]
    for n, (our_name, their_name) in enumerate(parts, start=1):
        copy_attention(getattr(ours, our_name), getattr(theirs, their_name))
        getattr(theirs, f"norm{n}").load_state_dict(getattr(ours, our_name).layer_norm.state_dict())
    copy_feed_forward(ours.pos_ffn, theirs)
    getattr(theirs, f"norm{len(parts) + 1}").load_state_dict(ours.pos_ffn.layer_norm.state_dict())
    return theirs.train()


def torch_logits(model, src_seq: Tensor, trg_seq: Tensor, norm: str, ffn: str) -> Tensor:
    def enter(stack, words):
        x = words + stack.position_enc.pos_table[:, : words.size(1)]
        return x if norm == "pre" else stack.layer_norm(x)

    def leave(stack, x):
        return stack.layer_norm(x) if norm == "pre" else x

    src_padding, trg_padding = src_seq == 0, trg_seq == 0
    future_mask = torch.ones(trg_seq.size(1), trg_seq.size(1), dtype=torch.bool).triu(1)
    memory = enter(model.encoder, model.encoder.src_word_emb(src_seq))
    for layer in model.encoder.layer_stack:
        memory = torch_layer(layer, nn.TransformerEncoderLayer, norm, ffn)(memory, src_key_padding_mask=src_padding)
    x, memory = enter(model.decoder, model.decoder.trg_word_emb(trg_seq)), leave(model.encoder, memory)
    for layer in model.decoder.layer_stack:
        x = torch_layer(layer, nn.TransformerDecoderLayer, norm, ffn)(
            x,
            memory,
            tgt_mask=future_mask,
            tgt_key_padding_mask=trg_padding,
            memory_key_padding_mask=src_padding,
        )
    return leave(model.decoder, x) @ model.trg_word_prj.weight.T * 0.25  # 1 / sqrt(d_model)


@pytest.mark.parametrize(("norm", "ffn"), [("post", "gelu"), ("pre", "relu")])
def test_model_equals_the_layers_of_torch(make, batch, norm, ffn):
    model = make(norm=norm, ffn=ffn, attn_bias=True, dropout=0.0)
    expected = torch_logits(model, *batch, norm, ffn)
    assert (model(*batch) - expected).abs().max() < 1e-12
    assert (model.train()(*batch) - expected).abs().max() < 1e-12
