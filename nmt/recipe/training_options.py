"""The options of training: what an update is made of, how it moves the weights, and for how long."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from nmt.recipe.section import Count, NonNegativeFloat, PositiveFloat, PositiveInt, Rate, Section


def _list_to_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


class BatchConfig(Section):
    """Which pairs make up an update; nothing here depends on the number of devices."""

    max_tokens: PositiveInt = Field(
        4096, description="Bound on sentences x longest sentence in one batch, so on memory."
    )
    per_update: PositiveInt = Field(
        1, description="Batches per update over all devices: more devices are faster, not different."
    )
    pool: PositiveInt = Field(100_000, description="Shuffled pairs that are sorted by length together.")
    packed: bool = Field(
        False,
        description="Lay sentences end to end instead of padding them: max_tokens then bounds the tokens of each side, "
        "and all batches have one shape. For GPUs in bf16 or fp16, whose attention has a kernel for it.",
    )
    split_rate: Rate = Field(
        0.0,
        description="Share of the subwords of training pairs that fall apart into what they were merged from, anew "
        "each time, as with BPE-dropout: for rare words. Batches grow by about as much.",
    )


class OptimConfig(Section):
    """The optimizer, its learning rate over the updates, and clipping."""

    name: Literal["adam", "adamw", "muon"] = Field(
        "adam", description="adam, adamw, or muon: orthogonalised momentum for matrices, adamw for the rest."
    )
    lr: PositiveFloat = Field(1e-3, description="Peak learning rate (noam computes its own: see lr_mul).")
    muon_lr: PositiveFloat = Field(0.02, description="Peak learning rate of the matrices under muon.")
    betas: Annotated[tuple[Rate, Rate], BeforeValidator(_list_to_tuple)] = Field(
        (0.9, 0.98), description="Decay of Adam's two moments."
    )
    eps: PositiveFloat = Field(1e-9, description="Added to Adam's denominator.")
    weight_decay: NonNegativeFloat = Field(0.0, description="Decay of matrices; decoupled in adamw and muon.")
    schedule: Literal["noam", "inverse_sqrt", "cosine", "linear", "constant"] = Field(
        "noam", description="Learning rate over the updates, after a linear warm-up."
    )
    warmup: Count = Field(4000, description="Updates of linear warm-up.")
    lr_mul: PositiveFloat = Field(2.0, description="Factor of the noam schedule, as upstream.")
    end_factor: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        0.0, description="Where cosine and linear end, as a share of the peak."
    )
    clip: NonNegativeFloat = Field(0.0, description="Largest norm of the gradient; 0: no clipping.")


class TrainConfig(Section):
    """How long, in which precision, what is written and what is kept."""

    out: str = Field("", description="The run folder; empty: runs/NAME.")
    updates: PositiveInt = Field(100_000, description="Updates to train for.")
    label_smoothing: Rate = Field(
        0.1, description="Mass taken from the gold token and spread over the vocabulary, padding excepted."
    )
    ema: Rate = Field(
        0.0, description="Decay of a moving average of the weights, a candidate for the final model; 0: none."
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto", description="auto measures the machine and says what it chose; the others measure nothing."
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: the GPU if there is one.")
    threads: Count = Field(0, description="CPU threads; 0: one a core.")
    parallel: Literal["ddp", "fsdp"] = Field(
        "ddp",
        description="On several devices: ddp keeps the whole model on each, fsdp cuts weights, gradients and moments "
        "between them. The results are the same.",
    )
    timeout: PositiveFloat = Field(
        600.0, description="Seconds of silence after which a process of several counts as dead, and ends the run."
    )
    compile: bool = Field(False, description="torch.compile the model: norm, dropout and residual become one pass.")
    cuda_graphs: bool = Field(
        False,
        description="Record the compiled model once and replay it, which spares a GPU the waiting for its orders; "
        "needs compile, and packed batches, which all have one shape.",
    )
    log_every: PositiveInt = Field(50, description="Updates between two lines of log.jsonl.")
    save_every: PositiveInt = Field(1000, description="Updates between two checkpoints.")
    keep_last: PositiveInt = Field(3, description="Newest checkpoints that are kept.")
    keep_best: PositiveInt = Field(1, description="Best checkpoints that are kept; the best is never deleted.")
    average: Literal["none", "last", "best"] = Field(
        "last", description="Which of the kept checkpoints are averaged at the end."
    )
    tensorboard: bool = Field(False, description="Also write TensorBoard events (needs the tensorboard extra).")
