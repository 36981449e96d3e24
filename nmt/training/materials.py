"""Packages, prepared data and model of a recipe, needed before training or measuring."""

import gc
import math
import shlex
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from nmt import ops
from nmt.data.arrays import Ragged
from nmt.data.batches import make_batch
from nmt.data.corpus import Prepared
from nmt.data.subwords import N_SPECIAL, PAD
from nmt.device import peak_flops
from nmt.errors import DataError, suppress_out_of_memory
from nmt.extras import require
from nmt.models.base import TranslationModel
from nmt.models.build import build_model
from nmt.recipe.options import Recipe
from nmt.run import Run
from nmt.training.engine import Engine, duration
from nmt.training.memory import Memory, Work
from nmt.training.optim import freeze
from nmt.training.parallel import Ranks
from nmt.training.precision import Precision, choose_precision
from nmt.training.validate import comet_of, finished_at

_TINY_RATE = 1e-9  # learning rate of trial updates, whose weights are discarded


class Trial:
    """Trial updates of one process on a model of the recipe, in the precision that a new run would have."""

    def __init__(self, recipe: Recipe, data: Prepared, device: torch.device) -> None:
        self.data, self.device = data, device
        precision = choose_precision(recipe.train, device)
        precision.apply()
        model = new_model(recipe, data, device)
        recipe, self.compile_why = decide_compile(recipe, model, precision, Ranks())
        freeze(model, recipe.train.freeze)
        self.engine = Engine(model.train(), recipe, precision=precision, ranks=Ranks())
        self.longest_side = 1 + int(max(data.train.src_len.max(), data.train.trg_len.max()))

    def longest(self, max_tokens: int) -> Work:
        """The batch of so many tokens that needs most memory: both sides as long as the longest pair, no padding."""
        n_pair = max(1, max_tokens // self.longest_side)
        lengths = np.full(n_pair, max(self.longest_side, max_tokens // n_pair) - 1)  # without EOS
        rng, codecs = np.random.default_rng(0), (self.data.subwords.src, self.data.subwords.trg)
        src, trg = (Ragged(rng.integers(N_SPECIAL, codec.size, lengths.sum()), lengths) for codec in codecs)
        return Work(make_batch(src, trg))

    def seconds(self, work: list[Work]) -> float:
        """Return the seconds that an update of these batches takes, until the device has finished."""
        begin = time.perf_counter()
        # As at the end of the run, when every regulariser is on and memory use is highest.
        self.engine.backward(work, sum(item.batch.n_gold for item in work), share=1.0)
        self.engine.step(_TINY_RATE, 1)
        self.engine.settle()
        return time.perf_counter() - begin

    def fits(self, work: Work) -> bool:
        """Return whether memory holds an update of this batch."""
        self.engine.memory, fits = Memory(), False
        with suppress_out_of_memory():  # also of the step, which allocates the moments
            self.seconds([work])
            fits = self.engine.memory.n_failed == 0
        self.engine.model.zero_grad()
        return fits

    def close(self) -> None:
        """Free the memory."""
        del self.engine
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def require_extras(recipe: Recipe, run: Run) -> None:
    """Raise MachineError if a package or COMET model that an unfinished run needs is missing."""
    if finished_at(run, recipe) is not None:
        return
    for extra, is_wanted in (("tensorboard", recipe.train.tensorboard), ("wandb", recipe.train.wandb)):
        if is_wanted:
            require(extra, f"train.{extra}")
    comet_of(recipe)


def open_data(recipe: Recipe) -> Prepared:
    """The prepared data of a recipe, after checking that it was made from this recipe's data and subwords."""
    folder = recipe.data_folder
    if not folder.exists():
        command = shlex.join(["nmt-preprocess", str(recipe.origin.file or "RECIPE")])
        raise DataError(
            f"data.out: no prepared data at {recipe.data_name}: {recipe.origin.tried('data.out', recipe.data_name)}. "
            f"Make it: {command}, or nmt-train --prepare; or name the folder: --data.out FOLDER"
        )
    data = Prepared.open(folder)
    if changed := data.differences(recipe):
        raise DataError(
            f"{folder} was prepared with other settings: {'; '.join(changed)}. Give the options of that folder, "
            "prepare the data again with nmt-preprocess and --overwrite, or choose another folder with --data.out."
        )
    return data


def new_model(recipe: Recipe, data: Prepared, device: torch.device) -> TranslationModel:
    """The model of a recipe with initial weights from the recipe's seed."""
    torch.manual_seed(recipe.seed % 2**63)  # torch accepts no larger seeds
    model = build_model(recipe.model, data.subwords.src.n_vocab, data.subwords.trg.n_vocab, PAD).to(device)
    model.first_tag = data.subwords.src.n_text
    if recipe.train.checkpoint_activations:
        model.recompute_activations()
    if recipe.train.compiled:
        compile_parts(model, recipe)
    return model


# Measured with base and big in packed rows in bf16, on one H200.
_SECONDS = 50  # extra time until the first update: for big 53 s compiled, 4 s not compiled
_FASTER = 1.3  # speed-up of big without CUDA graphs: 254,000 target tokens/s compiled, 192,000 not compiled
_UTILISATION = 0.25  # of the peak, not compiled: that of big; base has less than half of it
PAYS_FROM = 2 * _SECONDS / (1 - 1 / _FASTER)  # seconds of a run; twice, since other machines may compile more slowly


def decide_compile(
    recipe: Recipe, model: TranslationModel, precision: Precision, ranks: Ranks, saved: bool | None = None
) -> tuple[Recipe, str]:
    """Resolve auto in train.compile, and compile the model if auto chooses to. Returns the recipe with true or false,
    and the reason. saved: the decision of the resumed run, which must round as it began; None: a new run."""
    if recipe.train.compile != "auto":
        return recipe, "as the recipe says"
    device, n_param = model.device, sum(p.numel() for p in model.parameters())
    peak = peak_flops(device, precision.name) * ranks.world_size if device.type == "cuda" else 0.0
    compiles, why = saved, "as the run began"
    if compiles is None or recipe.train.parallel == "fsdp":
        compiles, why = ranks.on_main(lambda: compile_pays(recipe, device.type, n_param, peak))
    if compiles and ranks.any(not ops.can_compile(device)):
        compiles, why = False, "it needs Triton, a C compiler and a GPU of Ampere or later"
    recipe = recipe.with_options(train={"compile": compiles, "cuda_graphs": compiles and recipe.train.cuda_graphs})
    if compiles:
        compile_parts(model, recipe)
    return recipe, why


def compile_pays(recipe: Recipe, device: str, n_param: int, peak: float) -> tuple[bool, str]:
    """Return whether auto compiles a new run, and the reason. device: cpu or cuda. peak: peak performance of all
    devices together in FLOP/s, 0 if not known."""
    train, batch = recipe.train, recipe.batch
    if device != "cuda":
        return False, "on a CPU it is slower"
    if train.cuda_graphs:
        return True, "train.cuda_graphs needs it"
    if not batch.packed or train.checkpoint_activations or train.parallel == "fsdp":
        return False, "its gain is known for batch.packed only, without train.checkpoint_activations or fsdp"
    seconds = train.budget_seconds or math.inf  # upper bound on the length of the run
    if peak:
        assert batch.max_tokens != "auto"
        n_token = train.updates * (batch.tokens_per_update or batch.per_update * batch.max_tokens)
        seconds = min(seconds, 6 * n_param * n_token / (_UTILISATION * peak))
    if seconds == math.inf:
        return False, "the peak performance of this GPU is not known, so the length of the run cannot be estimated"
    why = f"the run takes about {duration(seconds)}, and compiling pays off from {duration(PAYS_FROM)} on"
    return seconds >= PAYS_FROM, why


def compile_parts(model: TranslationModel, recipe: Recipe) -> None:
    """Compile the large submodules of a model in place: without a wrapper, so parameters keep their names."""
    seq = torch.full((1, recipe.data.max_len + 1), PAD, device=model.device)
    with torch.no_grad():
        model.decode_hidden(seq, seq)  # position tables that grew later would cause recompilation
    stacks = [module for module in model.children() if list(module.children())]  # a single matrix has nothing to fuse
    from torch._inductor import list_options  # imported here since it loads the compiler

    options: dict[str, str | int | bool | Callable[..., Any]] = {"triton.cudagraphs": recipe.train.cuda_graphs}
    # On a GPU this option fuses sums over rows and over columns, as in the gradient of a norm, into one pass. For rows
    # as short as here one pass takes longer than two: base trained 7 % slower on an H200.
    if "triton.mix_order_reduction" in list_options():
        options["triton.mix_order_reduction"] = False
    for module in stacks:
        module.compile(dynamic=not recipe.batch.packed, options=options)
