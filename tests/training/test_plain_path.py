"""Learning is not bent for speed: 100 updates lose what they lose when every formula is written out in plain torch."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nmt import ops
from nmt.data.batches import STEP, Batch
from nmt.data.subwords import BOS, EOS, PAD
from nmt.masks import as_matrix
from nmt.models.build import build_model
from nmt.models.transformer.Modules import ScaledDotProductAttention
from nmt.recipe.options import Recipe
from nmt.training.engine import Engine, Work
from nmt.training.parallel import Ranks
from nmt.training.precision import Precision

dropping = pytest.importorskip("nmt.kernels.dropping")
passes = pytest.importorskip("nmt.kernels.passes")
switch = pytest.importorskip("nmt.kernels.switch")

N_VOCAB, N_UPDATE, SMOOTHING = 40, 100, 0.1
MODEL = {
    "d_model": 32,
    "d_inner": 64,
    "n_enc_layer": 1,
    "n_dec_layer": 1,
    "n_head": 4,
    "scale_emb_or_prj": "emb",
    "emb_init": "normal",
}


def batches():
    """Sentences to be written backwards, of uneven length."""
    generator = torch.Generator().manual_seed(1)
    made = []
    for _ in range(8):
        length = torch.randint(2, 12, (12,), generator=generator).tolist()
        words = [torch.randint(4, N_VOCAB, (n,), generator=generator) for n in length]
        src, trg, gold = (
            nn.utils.rnn.pad_sequence([framed(w) for w in words], batch_first=True, padding_value=PAD)
            for framed in (
                lambda w: torch.cat([w, torch.tensor([EOS])]),
                lambda w: torch.cat([torch.tensor([BOS]), w.flip(0)]),
                lambda w: torch.cat([w.flip(0), torch.tensor([EOS])]),
            )
        )
        made.append(Batch(src, trg, gold, sum(length) + len(length)))
    return made


def recipe(ffn):
    return Recipe.model_validate(
        {
            "name": "plain",
            "model": MODEL | {"ffn": ffn},
            "optim": {"schedule": "constant", "warmup": 0, "lr": 1e-3, "clip": 1.0},
            "train": {"label_smoothing": SMOOTHING},
        }
    )


def new_model(recipe, seed):
    torch.manual_seed(seed)
    return build_model(recipe.model, N_VOCAB, N_VOCAB, PAD).train()


def ours(recipe, seed):
    """The losses a token of our engine, with kernels of our own."""
    precision = Precision("fp32", "", "cpu", kernels=True)
    precision.apply()
    engine = Engine(new_model(recipe, seed), recipe, precision=precision, ranks=Ranks())
    losses, made = [], batches()
    for update in range(1, N_UPDATE + 1):
        batch = made[update % len(made)]
        engine.backward([Work(batch, True, seed=update)], batch.n_gold)
        engine.step(1.0, update)
        losses.append(engine.settle().loss / batch.n_gold)
    return torch.tensor(losses)


def plain(recipe, seed, monkeypatch):
    """The same from the formulas; only the draws of dropout are ours."""

    def decided(p, *shape):
        switch.use(True)
        how = dropping.seed(), dropping.n_drop(p), 1.0, torch.float32
        found = passes.drop_add(torch.ones(shape), None, *how)
        switch.use(False)
        return found

    def padded(row):
        """(places of sentences that lie end to end, ...) -> (sentences, the longest, ...)"""
        return nn.utils.rnn.pad_sequence(row[: start[-1]].split(start.diff().tolist()), batch_first=True)

    def kept(p, x):
        return padded(decided(p, -(-int(start[-1]) // STEP) * STEP, x.size(2)))

    def dropped(x, p, residual=None):
        x = x * kept(p, x) * dropping.scale_up(p) if p else x
        return x if residual is None else residual + x

    def attend(self, q, k, v, mask, return_attns=False):
        weight = (q @ k.transpose(-2, -1) / self.temperature).masked_fill(~as_matrix(mask), float("-inf")).softmax(-1)
        # A head of a sentence has room for the longest's, and its rows have four decisions a word.
        n_head, n_key, stays = weight.size(1), weight.size(3), []
        rows = decided(self.dropout.p, n_head * int(start[-1]), -(-n_key // 4) * 4)
        for one in rows.split((n_head * start.diff()).tolist()):
            n, words = len(one) // n_head, -(-len(one) // n_head // 4) * 4
            used = one.view(n_head, -1)[:, : n * words].view(n_head, n, words)[..., :n]
            stays.append(F.pad(used, (0, n_key - n, 0, weight.size(2) - n)))
        return (weight * torch.stack(stays) * dropping.scale_up(self.dropout.p)) @ v, None

    switch.use(False)
    monkeypatch.setattr(ops, "dropout", dropped)
    monkeypatch.setattr(ScaledDotProductAttention, "forward", attend)
    model, options = new_model(recipe, seed), recipe.optim
    adam = torch.optim.Adam(model.parameters(), lr=options.lr, betas=options.betas, eps=options.eps, foreach=False)
    losses, made = [], batches()
    for update in range(1, N_UPDATE + 1):
        batch = made[update % len(made)]
        start = F.pad((batch.gold != PAD).sum(1).cumsum(0), (1, 0))  # of both sides, which are as long
        torch.manual_seed(update)
        logits = model(batch.src_seq, batch.trg_seq)
        target = torch.full_like(logits, SMOOTHING / (N_VOCAB - 1))
        target[..., PAD] = 0
        target.scatter_add_(-1, batch.gold.unsqueeze(-1), torch.full_like(logits[..., :1], 1 - SMOOTHING))
        real = batch.gold != PAD
        loss = F.cross_entropy(logits[real], target[real])
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        adam.step()
        losses.append(loss.item())
    return torch.tensor(losses)


# A unit of relu whose input is zero but for rounding falls to either side of its kink, and the runs part by some 1e-3:
# now and then, whatever else is the same. So two of three are to agree. The others have no kink.
@pytest.mark.parametrize(("ffn", "seeds", "n_agree", "bound"), [("gelu", (1,), 1, 1e-5), ("relu", (1, 2, 3), 2, 1e-4)])
def test_a_hundred_updates_have_the_losses_of_the_plain_formulas(ffn, seeds, n_agree, bound):
    if why_not := switch.why_not():
        pytest.skip(f"no kernels here: {why_not}")
    differences = []
    for seed in seeds:
        fast = ours(recipe(ffn), seed)
        assert fast[-20:].mean() < 0.9 * fast[:20].mean()
        with pytest.MonkeyPatch.context() as monkeypatch:
            differences.append((fast - plain(recipe(ffn), seed, monkeypatch)).abs().max().item())
        if sum(difference < bound for difference in differences) == n_agree:
            break
    assert sum(difference < bound for difference in differences) == n_agree and max(differences) < 0.01
