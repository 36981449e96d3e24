"""What a recipe is likely to suffer from, as plain sentences: a list of rules, each on what was measured."""

from collections.abc import Iterator
from dataclasses import dataclass

from nmt.data.vocabulary.vocabulary_use import large_vocabulary
from nmt.recipe.options import Recipe
from nmt.recipe.presets import PRESETS, preset_for
from nmt.training.schedule import learning_rate_factor, share_of_run

# Parameters to a target token. Multi30k has 20 with the preset small and 120 with base, which learns it by heart.
_BY_HEART = 100
_MANY_EPOCHS = 500  # the recipes of Multi30k have less than ten
_POST_NORM_RATE = 1.5e-3  # peak rate up to which six layers with post-norm are known to train
_HOUR = 3600.0
_SHARED = 0.3  # of a processor that other work takes: a machine is seldom without a little


@dataclass(frozen=True)
class Findings:
    """What was measured of a recipe on this machine. Times in seconds, sizes in bytes; None: not known.

    n_update: that the run comes to. n_token: target tokens of the corpus, EOS counted. n_dropped: pairs that preparing
    the data dropped. peak: memory that training held at its worst, and room: what it might have held. n_failed: times
    that memory ran out in an update, and valid_fits: whether it held a validation. seconds: of one update, and tokens:
    target tokens in one. valid_seconds: of one validation of all sets, n_valid of them. choice_seconds: of choosing the
    final model. has_bf16: whether the device multiplies that faster than fp32. others: processors that other work kept
    busy meanwhile.
    """

    n_param: int
    n_pair: int
    n_dropped: int
    n_token: int
    n_vocab: int
    longest_side: int
    n_update: int
    n_update_in_epoch: int
    padding: float
    largest: tuple[int, int]
    peak: int | None
    room: int | None
    n_failed: int
    valid_fits: bool
    seconds: float
    tokens: float
    valid_seconds: float
    n_valid: int
    choice_seconds: float
    checkpoint: int
    disk: int
    disk_left: int
    device: str
    precision: str
    why_precision: str
    gpu_idle: bool
    has_bf16: bool
    others: float | None

    @property
    def speed(self) -> float:
        """Target tokens a second."""
        return self.tokens / self.seconds

    @property
    def measuring(self) -> float:
        """Seconds that the run spends on validation sets."""
        return self.n_valid * self.valid_seconds + self.choice_seconds


def peak_rate(recipe: Recipe) -> float:
    """The largest learning rate that the schedule comes to."""
    optim = recipe.optim
    update = max(1, optim.n_warmup)
    share = share_of_run(update, n_update=recipe.train.updates)
    factor = learning_rate_factor(update, optim, share=share, d_model=recipe.model.d_model)
    return factor if optim.schedule == "noam" else factor * optim.lr


def likely_troubles(recipe: Recipe, found: Findings) -> list[str]:
    """Everything that a careful colleague would ask about."""
    return [
        *_of_data(recipe, found),
        *_of_learning(recipe, found),
        *_of_time(recipe, found),
        *_of_machine(recipe, found),
    ]


def _of_data(recipe: Recipe, found: Findings) -> Iterator[str]:
    if large := large_vocabulary(found.n_vocab, found.n_token):
        yield large
    n_read = found.n_pair + found.n_dropped
    if found.n_dropped > 0.1 * n_read:
        yield (
            f"{found.n_dropped:,} of {n_read:,} training pairs ({found.n_dropped / n_read:.0%}) were dropped when the "
            "data was prepared: report.json in its folder says why"
        )
    max_tokens = recipe.batch.max_tokens
    if max_tokens != "auto" and found.longest_side > max_tokens:
        yield (
            f"the longest pair has {found.longest_side:,} subwords, more than batch.max_tokens, {max_tokens:,}: it is "
            "a batch alone and needs more memory than that promises; make one larger or data.max_len smaller"
        )
    if found.padding > 0.15 and recipe.batch.packed:
        yield (
            f"{found.padding:.0%} of the packed rows is empty: make batch.max_tokens larger, so that more pairs fit "
            "into one; if one side is much longer than the other that will not help, but batch.packed: false may"
        )
    elif found.padding > 0.15:
        yield f"{found.padding:.0%} of the batches is padding: make batch.pool or batch.max_tokens larger"


def _of_learning(recipe: Recipe, found: Findings) -> Iterator[str]:
    updates, optim, model = found.n_update, recipe.optim, recipe.model
    epochs = updates / found.n_update_in_epoch
    preset, _ = preset_for(found.n_token)
    # What another run has learnt of a larger corpus is another matter, and recurrent models have no presets.
    is_new = not (model.is_recurrent or recipe.train.init_from)
    if is_new and found.n_param > _BY_HEART * found.n_token and model.d_model > PRESETS[preset]["d_model"]:
        yield (
            f"the model is large for the corpus, and will learn it by heart: {found.n_param:,} parameters for "
            f"{found.n_token:,} target tokens, {epochs:,.0f} epochs of them: model.preset: auto would take {preset}"
        )
    if epochs > _MANY_EPOCHS and not recipe.valid.patience:
        yield (
            f"every pair is seen {epochs:,.0f} times: make train.updates or train.time_budget smaller, or let "
            "valid.patience end the run when the model gets no better"
        )
    why = " that train.time_budget has time for" if updates < recipe.train.updates else ""
    if optim.n_warmup >= updates:
        yield (
            f"optim.warmup, {optim.n_warmup:,} updates, is no shorter than the run, {updates:,}{why}: the rate never "
            "falls"
        )
    n_layer, rate = 0 if model.is_recurrent else max(model.n_enc_layer, model.n_dec_layer), peak_rate(recipe)
    if model.norm == "post" and optim.name != "muon" and n_layer >= 6 and rate > _POST_NORM_RATE * 6 / n_layer:
        yield (
            f"{n_layer} layers with model.norm: post at a peak learning rate of {rate:.1e} often diverge: lower it, "
            "warm up for longer, or take model.norm: pre"
        )
    if updates < found.n_update_in_epoch:
        yield (
            f"the run ends, after {updates:,} updates{why}, before every pair was seen once "
            f"({found.n_update_in_epoch:,})"
        )


def _of_time(recipe: Recipe, found: Findings) -> Iterator[str]:
    valid, training = found.measuring, found.seconds * found.n_update
    if valid > 0.2 * (valid + training):
        yield (
            f"validation takes {valid / (valid + training):.0%} of the time: make valid.every larger, or set "
            "valid.max_sentences or valid.beam lower"
        )
    every = recipe.valid.every
    if every != "auto" and every > found.n_update and not recipe.train.budget_seconds:  # which has one in the middle
        yield "the model is measured once, at the end: make valid.every smaller to see it learn"
    lost = recipe.train.save_every * found.seconds
    if lost > _HOUR:
        yield f"a killed run loses up to {lost / _HOUR:.1f} h of work: make train.save_every smaller"


def _of_machine(recipe: Recipe, found: Findings) -> Iterator[str]:
    if found.n_failed:
        yield (
            f"memory ran out {found.n_failed} times and batches were halved: make batch.max_tokens smaller; several "
            "processes cannot halve them, since each waits for the others' gradients of whole batches"
        )
    if not found.valid_fits:
        yield "memory ran out in the largest validation batch: make valid.max_tokens smaller"
    if found.peak is not None and found.room is not None and found.peak > 0.9 * found.room:
        yield "memory is nearly full: make batch.max_tokens smaller, or set train.checkpoint_activations to true"
    if found.disk > found.disk_left:
        yield "the disk has too little room for the checkpoints: free some, or lower train.keep_last and keep_best"
    if found.gpu_idle:
        yield "there is a GPU, and train.device is cpu"
    model = recipe.model
    packs = not (model.is_recurrent or model.lexical_attn) and model.d_k == model.d_v
    if found.device == "cuda" and found.has_bf16 and packs and not (recipe.batch.packed and recipe.train.compile):
        yield (
            "a GPU trains a Transformer 1.6 to 2.8 times as fast, the more the smaller it is, with batch.packed, "
            "train.compile and train.cuda_graphs set to true, which want model.attn_dropout: 0 (docs/performance.md)"
        )
    if recipe.train.precision == "fp16" and found.has_bf16:
        yield "train.precision is fp16, but this GPU has bf16, which is as fast and overflows a good deal later"
    if recipe.train.precision == "bf16" and not found.has_bf16:
        machine = "GPU" if found.device == "cuda" else "processor"
        yield f"train.precision is bf16, which this {machine} multiplies no faster than fp32: take auto"
    if found.device == "cpu" and found.others is not None and found.others > _SHARED:
        yield f"other work kept {found.others:.1f} processors busy meanwhile: without it, training is faster"
    if recipe.train.compile and found.device == "cpu":
        yield "train.compile takes minutes on a CPU and gains little there"
