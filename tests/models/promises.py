"""What every model keeps, whatever its family: checks that the tests of more than one of them make."""

import random

import torch

from nmt.models.layers import Gaps


def some_combinations(options, n):
    """n seeded combinations in which every option takes each of its values equally often."""
    columns = {name: [values[i % len(values)] for i in range(n)] for name, values in options.items()}
    for name, column in columns.items():
        random.Random(name).shuffle(column)
    return [{name: column[i] for name, column in columns.items()} for i in range(n)]


@torch.no_grad()
def check_steps_of_a_search(model, src_seq, state, words, k, sizes):
    """Each step gives the logits of the whole forward pass. Rows come k a sentence, (n · k, T) words read so far.

    After a step as many survivors as `sizes` says descend from random hypotheses of their own sentence, and now and
    then a sentence leaves.
    """
    sentences = torch.arange(len(src_seq))
    for t, new_k in enumerate(sizes):
        last = torch.randint(0, 24, (words.size(0),))  # 0, padding, among them
        words = torch.cat([words, last.unsqueeze(1)], dim=1)
        found = model.step(last, state)
        expected = model(src_seq[sentences].repeat_interleave(k, 0), words)[:, -1]
        assert (found - expected).abs().max() < 1e-10
        stay = torch.arange(len(sentences)) if t % 2 == 0 else torch.randperm(len(sentences))[:-1]
        rows = (stay.unsqueeze(1) * k + torch.randint(0, k, (len(stay), new_k))).flatten()
        if len(stay) < len(sentences):
            state.keep(Gaps.of(stay, stay.device))
        state.reorder(rows)
        sentences, words, k = sentences[stay], words[rows], new_k


def check_a_source_of_padding(model, batch):
    """Finite logits and gradients for a source that is nothing but padding, and a target that begins with it."""
    src_seq, trg_seq = batch[0].clone(), batch[1].clone()
    src_seq[1] = trg_seq[2, 0] = 0
    logits = model(src_seq, trg_seq)
    logits.square().sum().backward()
    assert logits.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def check_training(model, batch):
    """In training the gradient depends on the seed alone, and every parameter has one."""

    def gradients():
        model.zero_grad()
        torch.manual_seed(9)
        model.train()(*batch).square().sum().backward()
        return {name: p.grad.clone() for name, p in model.named_parameters()}

    first = gradients()
    assert [name for name, grad in first.items() if not grad.abs().sum() > 0] == []
    assert all(torch.equal(a, b) for a, b in zip(first.values(), gradients().values(), strict=True))


def check_autocast_to_bf16(model, batch):
    """A model of fp32 trains and decodes in bf16, near to what it does in fp32: those logits are returned."""
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
