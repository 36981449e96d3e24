"""Options of training: batches, optimizer, length of a run, and regularisers."""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, field_serializer

from nmt.recipe.section import (
    MOST_THREADS,
    Count,
    Duration,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Rate,
    Section,
    one_or_many,
)

Share = Annotated[float, Field(ge=0.0, le=1.0)]
# Schedules that depend on the update number alone, not on the length of the run.
WITHOUT_END = ("noam", "inverse_sqrt", "constant")


class BatchConfig(Section):
    """Batches of an update; no option here depends on the number of devices."""

    max_tokens: PositiveInt | Literal["auto"] = 4096
    """Bound on sentences x longest sentence in one batch, so on memory. auto: measured on a GPU, 2,048 on a CPU."""
    per_update: PositiveInt = 1
    """Batches per update over all devices: more devices are faster, not different."""
    tokens_per_update: Count = 0
    """Add batches until an update has this many target tokens over all devices; 0: per_update batches."""
    pool: PositiveInt = 100_000
    """Shuffled pairs in one pool; each pool is sorted by length."""
    packed: bool = False
    """Lay sentences end to end in place of padding: max_tokens then bounds each side. For GPUs in bf16 or fp16."""
    bpe_dropout: Rate = 0.0
    """BPE-dropout: probability to skip a merge, drawn anew for each pair (Provilkov et al. 2020, who take 0.1)."""
    unigram_alpha: NonNegativeFloat = 0.0
    """For subwords.kind: unigram: sample segmentations by p^alpha (Kudo 2018: 0.1 to 0.5); 0: the best one."""


class OptimConfig(Section):
    """The optimizer, its learning rate over the updates, and clipping."""

    name: Literal["adam", "adamw", "muon"] = "adam"
    """muon: orthogonalised momentum for matrices, adamw for the rest."""
    lr: PositiveFloat | Literal["auto"] = 1e-3
    """Peak learning rate (noam has lr_mul instead). auto: 0.38 / model.d_model, or 1.15 / model.d_model under muon."""
    muon_lr: PositiveFloat | Literal["auto"] = 0.02
    """Peak learning rate of the matrices under muon. auto: 1.15 / model.d_model."""
    muon_momentum: Rate = 0.95
    """Decay of the momentum of muon; lower for runs of some hundred updates."""
    betas: tuple[Rate, Rate] = Field((0.9, 0.98), strict=False)
    """Decay of Adam's two moments."""
    eps: PositiveFloat = 1e-9
    """Added to Adam's denominator."""
    weight_decay: NonNegativeFloat = 0.0
    """Decay of matrices; decoupled in all but adam."""
    schedule: Literal["noam", "inverse_sqrt", "cosine", "linear", "wsd", "constant", "auto"] = "noam"
    """Rate after a linear warm-up; wsd stays, then decays. auto: linear with train.time_budget, else inverse_sqrt."""
    warmup: Count | Literal["auto"] = 4000
    """Updates of linear warm-up. auto: a twentieth of the run, from 10 to 200."""
    lr_mul: PositiveFloat = 2.0
    """Factor of the noam schedule, as upstream."""
    end_factor: Share = 0.0
    """Final rate of cosine, linear and wsd, as a share of the peak."""
    decay_share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.2
    """Share of the run, at its end, over which wsd decays."""
    rate_of: dict[str, PositiveFloat] = Field(default_factory=dict)
    """Factors of the learning rate, by patterns of parameters' names: {"encoder.*": 0.1}; the first match counts."""
    clip: NonNegativeFloat = 0.0
    """Largest norm of the gradient; 0: no clipping."""

    @property
    def n_warmup(self) -> int:
        """`warmup` as a number. `training/resolve.py` replaces auto."""
        assert self.warmup != "auto", "resolve the recipe first"
        return self.warmup

    @field_serializer("rate_of", when_used="json")
    def _in_order(self, value: dict[str, float]) -> list[tuple[str, float]]:
        return list(value.items())  # a list, since the order of the patterns is part of the recipe


class TrainConfig(Section):
    """Length, precision, checkpoints and logs of a run."""

    out: str = ""
    """The run folder; empty: runs/NAME."""
    updates: PositiveInt = 100_000
    """Updates to train for; with time_budget, or written beside epochs, at most this many."""
    epochs: Count = 0
    """Passes over the training pairs to train for, unless another end comes first; 0: none."""
    time_budget: Duration = ""
    """Wall time of the command, all its parts included: 90s, 20m, 1h30m. The schedule ends with it; empty: no limit."""
    label_smoothing: Rate = 0.1
    """Mass taken from the gold token and spread over the vocabulary, padding excepted."""
    ema: Rate = 0.0
    """Decay of a moving average of the weights, a candidate for the final model; 0: none."""
    init_from: str = ""
    """A run, or RUN/checkpoints/NAME, whose weights a new run begins with; empty: none."""
    freeze: Annotated[list[str], one_or_many(str)] = Field(default_factory=list)
    """Name patterns of parameters that are not trained: ["encoder.*", "*emb.weight"]."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """auto: bf16 where the device has instructions for it, else fp32, or fp16 on a GPU."""
    kernels: Literal["auto", "torch"] = "auto"
    """Operations between matrix products on a CPU. auto: our own kernels if there is a C compiler; torch: none."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: the GPU if there is one. Of several, CUDA_VISIBLE_DEVICES=1 in the environment names one."""
    threads: Count = Field(0, le=MOST_THREADS)
    """CPU threads; 0: one a core."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """On several devices: ddp keeps the whole model on each, fsdp shards weights, gradients and moments."""
    timeout: PositiveFloat = 600.0
    """Seconds that one process waits for another before the run ends."""
    compile: bool | Literal["auto"] = "auto"
    """torch.compile the model. auto: on a GPU, for packed batches, if the run is long enough to gain by it."""
    cuda_graphs: bool = False
    """Replay the compiled model as CUDA graphs on a GPU; needs compile and packed batches."""
    checkpoint_activations: bool = False
    """Recompute layers in the backward pass: the same result in less memory, for about a third more time."""
    log_every: PositiveInt = 50
    """Updates between two lines of log.jsonl."""
    save_every: PositiveInt = 1000
    """Updates between two checkpoints."""
    keep_last: PositiveInt = 3
    """Number of newest checkpoints to keep."""
    keep_best: PositiveInt = 1
    """Number of best checkpoints to keep; the best is never deleted."""
    average: Literal["none", "last", "best"] = "last"
    """Kept checkpoints to average at the end."""
    tensorboard: bool = False
    """Also write TensorBoard events (needs the tensorboard extra)."""
    wandb: bool = False
    """Also send the log to Weights & Biases (needs the wandb extra)."""

    @property
    def compiled(self) -> bool:
        """Return whether the model is compiled. False for auto until `training/materials.py` has resolved it."""
        return self.compile is True

    @property
    def budget_seconds(self) -> float:
        """`time_budget` in seconds; 0: none."""
        unit = {"d": 86400, "h": 3600, "m": 60, "s": 1}
        parts = re.findall(r"(\d+)([dhms])", self.time_budget)
        return float(sum(int(number) * unit[letter] for number, letter in parts))


class NoiseConfig(Section):
    """Noise of careless writing in a share of the training pairs, drawn anew each epoch; 0 is off."""

    upper: Share = 0.0
    """Share of the pairs in CAPITALS, both sides."""
    title: Share = 0.0
    """Share of the pairs whose source is In Title Case; the target stays."""
    lower: Share = 0.0
    """Share of the pairs whose source is in lower case; the target stays."""
    no_end: Share = 0.0
    """Share of the pairs that lose the full stop, ? or ! at the end of both sides."""
    typo: Share = 0.0
    """Share of the pairs with letters of the source swapped, left out or doubled, one in 60 characters."""

    def shares(self) -> dict[str, float]:
        """Return the share of each kind of noise that is on."""
        return {name: share for name in type(self).model_fields if (share := getattr(self, name))}


class RegularizeConfig(Section):
    """Regularisers; 0 is off."""

    r_drop: NonNegativeFloat = 0.0
    """R-Drop: weight of the divergence between two dropout passes (Liang et al. 2021: 5); twice the time."""
    r_drop_from: Rate = 0.0
    """Share of the run after which r_drop is on."""
    simcut: NonNegativeFloat = 0.0
    """SimCut: weight of the divergence from a pass with words cut out (Gao et al. 2022: 3); twice the time."""
    simcut_p: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.05
    """SimCut: probability to cut out a word."""
    simcut_from: Rate = 0.0
    """Share of the run after which simcut is on."""
    src_word_dropout: Rate = 0.0
    """Probability to drop a source word: its embedding is zero (Sennrich et al. 2016)."""
    trg_word_dropout: Rate = 0.0
    """Probability to drop a target word from the input of the decoder, not from its gold output."""
    noise: NoiseConfig = Field(default_factory=lambda: NoiseConfig())
    """Noise in training pairs: capitals, no full stop, typing errors. Batches grow by about as much."""

    def at(self, share: float) -> Self:
        """Return the options in force after this share of the run: 0 for those that begin later."""
        start_of = {"r_drop": self.r_drop_from, "simcut": self.simcut_from}
        return self.model_copy(update={name: 0.0 for name, start in start_of.items() if share < start})
