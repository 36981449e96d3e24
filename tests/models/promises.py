"""Checks of properties that all families of models share."""

import random

import torch

from nmt.models.layers import Gaps


def option_combinations(options, n):
    """Return n seeded combinations in which each option takes each of its values equally often."""
    columns = {name: [values[i % len(values)] for i in range(n)] for name, values in options.items()}
    for name, column in columns.items():
        random.Random(name).shuffle(column)
    return [{name: column[i] for name, column in columns.items()} for i in range(n)]


@torch.no_grad()
def check_search_steps(model, src_seq, state, words, k, sizes):
    """Each step gives the logits of the full forward pass. words: (n · k, T), k rows a sentence, already read.

    After each step, the next of `sizes` rows a sentence continue random hypotheses of that sentence. After every
    second step, one sentence leaves.
    """
    sentences = torch.arange(len(src_seq))
    for t, new_k in enumerate(sizes):
        last = torch.randint(0, 24, (words.size(0),))  # 0, padding, among them
        words = torch.cat([words, last.unsqueeze(1)], dim=1)
        found = model.step(last, state)
        expected = model(src_seq[sentences].repeat_interleave(k, 0), words)[:, -1]
        assert (found - expected).abs().max() < 1e-10
        done = torch.arange(len(sentences)) == (int(torch.randint(len(sentences), ())) if t % 2 else -1)
        gaps = Gaps.of(done, done.device)
        rows = (gaps.stay.unsqueeze(1) * k + torch.randint(0, k, (len(gaps.stay), new_k))).flatten()
        state.keep(gaps)
        state.reorder(rows)
        sentences, words, k = sentences[gaps.stay], words[rows], new_k


def check_all_padding_source(model, batch):
    """Logits and gradients are finite for a source of nothing but padding, and a target that begins with padding."""
    src_seq, trg_seq = batch[0].clone(), batch[1].clone()
    src_seq[1] = trg_seq[2, 0] = 0
    logits = model(src_seq, trg_seq)
    logits.square().sum().backward()
    assert logits.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def check_training(model, batch):
    """In training, the gradient depends only on the seed, and every parameter has a gradient."""

    def gradients():
        model.zero_grad()
        torch.manual_seed(9)
        model.train()(*batch).square().sum().backward()
        return {name: p.grad.clone() for name, p in model.named_parameters()}

    first = gradients()
    assert [name for name, grad in first.items() if not grad.abs().sum() > 0] == []
    assert all(torch.equal(a, b) for a, b in zip(first.values(), gradients().values(), strict=True))


def check_autocast_to_bf16(model, batch):
    """An fp32 model trains and decodes in bf16 with nearly the same logits. Return the logits in fp32."""
    with torch.no_grad():
        exact = model(*batch)
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            close = model(*batch)
            state = model.start(batch[0])
            assert model.step(batch[1][:, 0], state).isfinite().all()
        model.train()(*batch).float().square().sum().backward()
    assert (close - exact).abs().max() < 0.1 * exact.abs().max()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in model.parameters())
    return exact
