"""The options of training: what an update is made of, how it moves the weights, and for how long."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_serializer

from nmt.recipe.section import (
    MOST_THREADS,
    Count,
    Duration,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Rate,
    Section,
    list_to_tuple,
    seconds_of,
)


def _one_or_many(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class BatchConfig(Section):
    """Pairs of an update; nothing here depends on the number of devices."""

    max_tokens: PositiveInt | Literal["auto"] = Field(
        4096,
        description="Bound on sentences x longest sentence in one batch, so on memory. auto: measured when training "
        "begins, the largest that fits a GPU; on a CPU 2,048 or less.",
    )
    per_update: PositiveInt = Field(
        1, description="Batches per update over all devices: more devices are faster, not different."
    )
    tokens_per_update: Count = Field(
        0,
        description="Target tokens per update over all devices: batches are added until they have this many; 0: "
        "per_update batches.",
    )
    pool: PositiveInt = Field(100_000, description="Shuffled pairs that are sorted by length together.")
    packed: bool = Field(
        False,
        description="Lay sentences end to end instead of padding them: max_tokens then bounds the tokens of each side, "
        "and all batches have one shape. For GPUs in bf16 or fp16, whose attention has a kernel for it.",
    )
    bpe_dropout: Rate = Field(
        0.0,
        description="BPE-dropout: probability of a merge to be left out when a word of a training pair is cut, anew "
        "each time (Provilkov et al. 2020, who take 0.1). Batches keep to max_tokens, so they hold fewer pairs.",
    )
    unigram_alpha: NonNegativeFloat = Field(
        0.0,
        description="For subwords.kind: unigram: words of training pairs are cut by chance, as likely as their "
        "probability to this power (Kudo 2018, who takes 0.1 to 0.5; the smaller, the more even); 0: as is likeliest. "
        "Batches keep to max_tokens, so they hold fewer pairs.",
    )


# The schedules that depend on the update alone, and not on the length of the run.
WITHOUT_END = ("noam", "inverse_sqrt", "constant")


class OptimConfig(Section):
    """The optimizer, its learning rate over the updates, and clipping."""

    name: Literal["adam", "adamw", "muon", "schedulefree"] = Field(
        "adam",
        description="adam, adamw, muon: orthogonalised momentum for matrices, adamw for the rest; schedulefree: adamw "
        "that averages its weights instead of lowering its rate (needs the schedulefree extra).",
    )
    lr: PositiveFloat = Field(1e-3, description="Peak learning rate (noam computes its own: see lr_mul).")
    muon_lr: PositiveFloat = Field(0.02, description="Peak learning rate of the matrices under muon.")
    muon_momentum: Rate = Field(
        0.95, description="Decay of the momentum of muon; lower for runs of some hundred updates."
    )
    betas: Annotated[tuple[Rate, Rate], BeforeValidator(list_to_tuple)] = Field(
        (0.9, 0.98), description="Decay of Adam's two moments."
    )
    eps: PositiveFloat = Field(1e-9, description="Added to Adam's denominator.")
    weight_decay: NonNegativeFloat = Field(0.0, description="Decay of matrices; decoupled in all but adam.")
    schedule: Literal["noam", "inverse_sqrt", "cosine", "linear", "wsd", "constant", "auto"] = Field(
        "noam",
        description="Learning rate over the run, after a linear warm-up; wsd stays at its peak, then decays. auto: "
        "linear with train.time_budget, else inverse_sqrt (constant for schedulefree).",
    )
    warmup: Count | Literal["auto"] = Field(
        4000,
        description="Updates of linear warm-up. auto: a twentieth of the run, from 10 to 200; with train.time_budget "
        "the speed is measured when training begins.",
    )
    lr_mul: PositiveFloat = Field(2.0, description="Factor of the noam schedule, as upstream.")
    end_factor: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        0.0, description="Where cosine, linear and wsd end, as a share of the peak."
    )
    decay_share: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        0.2, description="Share of the run, at its end, over which wsd decays."
    )
    rate_of: dict[str, PositiveFloat] = Field(
        default_factory=dict,
        description='Factors of the learning rate of some parameters, by patterns of their names: {"encoder.*": 0.1}. '
        "Where several fit, the first counts.",
    )
    clip: NonNegativeFloat = Field(0.0, description="Largest norm of the gradient; 0: no clipping.")

    @property
    def n_warmup(self) -> int:
        """`warmup` as a number, which `training/resolve.py` has put in the place of auto."""
        assert self.warmup != "auto", "resolve the recipe first"
        return self.warmup

    @field_serializer("rate_of", when_used="json")
    def _in_order(self, value: dict[str, float]) -> list[tuple[str, float]]:
        return list(value.items())  # whose order has a meaning, so that another order is another recipe


class TrainConfig(Section):
    """Length, precision, checkpoints and logs of a run."""

    out: str = Field("", description="The run folder; empty: runs/NAME.")
    updates: PositiveInt = Field(100_000, description="Updates to train for; with time_budget at most this many.")
    time_budget: Duration = Field(
        "",
        description="Wall time of the whole command, over all its parts if it is resumed: 90s, 20m, 1h30m. Compiling, "
        "validating, saving and choosing the final model count. The schedule ends when time does; empty: no limit.",
    )
    label_smoothing: Rate = Field(
        0.1, description="Mass taken from the gold token and spread over the vocabulary, padding excepted."
    )
    ema: Rate = Field(
        0.0, description="Decay of a moving average of the weights, a candidate for the final model; 0: none."
    )
    init_from: str = Field(
        "", description="A run, or RUN/checkpoints/NAME, whose weights a new run begins with; empty: none."
    )
    freeze: Annotated[list[str], BeforeValidator(_one_or_many, json_schema_input_type=str | list[str])] = Field(
        default_factory=list,
        description='Patterns of names of parameters that stay as they are: ["encoder.*", "*emb.weight"].',
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto", description="auto: bf16 where the device has instructions for it, else fp32, or fp16 on a GPU."
    )
    kernels: Literal["auto", "torch"] = Field(
        "auto",
        description="What lies between matrix products on a CPU. auto: done by kernels that are compiled for the "
        "processor, once, where there is a C compiler, which is faster; torch: by torch alone.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto",
        description="auto: the GPU if there is one. Of several, CUDA_VISIBLE_DEVICES=1 in the environment names one.",
    )
    threads: Count = Field(0, le=MOST_THREADS, description="CPU threads; 0: one a core.")
    parallel: Literal["ddp", "fsdp"] = Field(
        "ddp",
        description="On several devices: ddp keeps the whole model on each, fsdp cuts weights, gradients and moments "
        "between them. The results are the same.",
    )
    timeout: PositiveFloat = Field(
        600.0, description="Seconds that a process of several waits for another before the run ends."
    )
    compile: bool = Field(False, description="torch.compile the model: norm, dropout and residual become one pass.")
    cuda_graphs: bool = Field(
        False,
        description="Record the compiled model once and replay it, which spares a GPU the waiting for its orders; "
        "needs compile, and packed batches, which all have one shape.",
    )
    checkpoint_activations: bool = Field(
        False,
        description="Compute what happens inside a layer again in the backward pass in place of remembering it: the "
        "same result in less memory, for about a third more time.",
    )
    log_every: PositiveInt = Field(50, description="Updates between two lines of log.jsonl.")
    save_every: PositiveInt = Field(1000, description="Updates between two checkpoints.")
    keep_last: PositiveInt = Field(3, description="Newest checkpoints that are kept.")
    keep_best: PositiveInt = Field(1, description="Best checkpoints that are kept; the best is never deleted.")
    average: Literal["none", "last", "best"] = Field(
        "last", description="Which of the kept checkpoints are averaged at the end."
    )
    tensorboard: bool = Field(False, description="Also write TensorBoard events (needs the tensorboard extra).")
    wandb: bool = Field(False, description="Also send the log to Weights & Biases (needs the wandb extra).")

    @property
    def budget_seconds(self) -> float:
        """`time_budget` as a number; 0: none."""
        return seconds_of(self.time_budget)


# The options of regularisers that change what training sees of the model.


Probability = Annotated[float, Field(gt=0.0, lt=1.0)]


Share = Annotated[float, Field(ge=0.0, le=1.0)]


class NoiseConfig(Section):
    """Shares of the training pairs that are read as careless writers would have them, each epoch others; 0 is off."""

    upper: Share = Field(
        0.0, description="Share of the pairs in CAPITALS, both sides: what comes in capitals is translated into them."
    )
    title: Share = Field(0.0, description="Share of the pairs whose source is In Title Case; the target stays.")
    lower: Share = Field(0.0, description="Share of the pairs whose source is in small letters; the target stays.")
    no_end: Share = Field(
        0.0, description="Share of the pairs whose sides both lose their full stop, ? or ! at the end."
    )
    typo: Share = Field(
        0.0,
        description="Share of the pairs with letters of the source swapped, left out or doubled, one in 60 characters.",
    )

    def shares(self) -> dict[str, float]:
        """Return what is on, and how much of it."""
        return {name: share for name in type(self).model_fields if (share := getattr(self, name))}


class RegularizeConfig(Section):
    """Regularisers, each from a share of the run on; 0 is off."""

    r_drop: NonNegativeFloat = Field(
        0.0,
        description="R-Drop: weight alpha of the symmetric divergence between two passes with different dropout (Liang "
        "et al. 2021, who take 5). About twice the time, and the memory of twice batch.max_tokens.",
    )
    r_drop_from: Rate = Field(0.0, description="Share of the run after which r_drop is on.")
    simcut: NonNegativeFloat = Field(
        0.0,
        description="SimCut: weight alpha of the divergence between a pass and one with words cut out on both sides "
        "(Gao et al. 2022, who take 3). About twice the time, and the memory of twice batch.max_tokens.",
    )
    simcut_p: Probability = Field(0.05, description="SimCut: probability of a word to be cut out.")
    simcut_from: Rate = Field(0.0, description="Share of the run after which simcut is on.")
    src_word_dropout: Rate = Field(
        0.0, description="Probability of a source word to be dropped: its embedding is zero (Sennrich et al. 2016)."
    )
    trg_word_dropout: Rate = Field(
        0.0, description="Probability of a target word to be dropped where the decoder reads it, not where it predicts."
    )
    word_dropout_from: Rate = Field(0.0, description="Share of the run after which both word dropouts are on.")
    layer_drop: Rate = Field(
        0.0, description="Probability of a layer to be left out of an update (Fan et al. 2020, who take 0.2)."
    )
    layer_drop_from: Rate = Field(0.0, description="Share of the run after which layer_drop is on.")
    noise: NoiseConfig = Field(
        default_factory=lambda: NoiseConfig(),
        description="Training pairs in other dress: capitals, no end, typing errors. Batches grow by about as much.",
    )

    @property
    def drops_words(self) -> bool:
        """Return whether a word may ever be missing from a sentence."""
        return bool(self.simcut or self.src_word_dropout or self.trg_word_dropout)

    def at(self, share: float) -> Self:
        """Return the same options, with 0 for those that are not on when this share of the run has passed."""
        begins = {
            "r_drop": self.r_drop_from,
            "simcut": self.simcut_from,
            "src_word_dropout": self.word_dropout_from,
            "trg_word_dropout": self.word_dropout_from,
            "layer_drop": self.layer_drop_from,
        }
        return self.model_copy(update={name: 0.0 for name, begin in begins.items() if share < begin})
