"""Packages, prepared data and model of a recipe, needed before anything is trained or measured."""

import gc
import math
import shlex
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from nmt import ops
from nmt.data.batches import Batch, make_batch
from nmt.data.corpus import Prepared
from nmt.data.plan import Plan
from nmt.data.subwords import BOS, EOS, N_SPECIAL, PAD
from nmt.device import peak_flops
from nmt.errors import DataError, OutOfMemory, is_out_of_memory
from nmt.extras import require
from nmt.models.base import TranslationModel
from nmt.models.build import build_model
from nmt.recipe.options import Recipe
from nmt.training.engine import Engine, duration
from nmt.training.memory import Memory, Work
from nmt.training.optim import freeze
from nmt.training.parallel import Ranks
from nmt.training.precision import Precision, choose_precision
from nmt.training.validate import comet_of

_SAMPLE = 20_000  # pairs that stand for the corpus
_TINY_RATE = 1e-9  # of learning: the weights are of no interest


class Trial:
    """One process that tries batches on a model of the recipe, in the arithmetic that a new run would have."""

    def __init__(self, recipe: Recipe, data: Prepared, device: torch.device) -> None:
        self.data, self.device, first_tag = data, device, data.subwords.src.n_text
        precision = choose_precision(recipe.train, device)
        precision.apply()
        model = new_model(recipe, data, device)
        recipe, self.compile_why = decide_compile(recipe, model, precision, Ranks())
        freeze(model, recipe.train.freeze)
        self.engine = Engine(model.train(), recipe, precision=precision, ranks=Ranks(), first_tag=first_tag)
        self.longest_side = 1 + int(max(data.train.src_len.max(), data.train.trg_len.max()))

    def longest(self, max_tokens: int) -> Work:
        """The batch of that many tokens that needs most memory: both sides as long as the longest pair, no padding."""
        n = max(1, max_tokens // self.longest_side)
        length = max(self.longest_side, max_tokens // n)
        rng = np.random.default_rng(0)
        src, trg = self.data.subwords.src, self.data.subwords.trg
        src_seq, gold = (torch.from_numpy(rng.integers(N_SPECIAL, s.size, (n, length))) for s in (src, trg))
        src_seq[:, -1] = gold[:, -1] = EOS
        trg_seq = torch.cat([torch.full((n, 1), BOS), gold[:, :-1]], dim=1)
        return Work(Batch(src_seq, trg_seq, gold, gold.numel()), True, 0)

    def typical(self, max_tokens: int) -> list[Work]:
        """Three batches of the corpus at most: of short, of usual and of long sentences."""
        corpus = self.data.train
        some = np.random.default_rng(0).choice(corpus.n_pair, min(_SAMPLE, corpus.n_pair), replace=False)
        lengths = corpus.src_len[some], corpus.trg_len[some]
        plan = Plan(*lengths, seed=0, max_tokens=max_tokens, per_update=1, pool=len(some))
        found = sorted((rows for (rows,) in plan.updates(0)), key=lambda rows: int(plan.lengths(rows)[1].max()))
        picked = dict.fromkeys(len(found) * sixth // 6 for sixth in (1, 3, 5))
        return [Work(make_batch(*corpus.picked(some[found[i]]), plan.padded), True, i) for i in picked]

    def seconds(self, work: list[Work]) -> float:
        """Return the seconds that an update of these batches takes, to its very end."""
        begin = time.perf_counter()
        # As at the end of the run, when all that takes memory is on.
        self.engine.backward(work, sum(item.batch.n_gold for item in work), share=1.0)
        self.engine.step(_TINY_RATE, 1)
        self.engine.settle()
        return time.perf_counter() - begin

    def fits(self, work: Work) -> bool:
        """Return whether memory holds an update of this batch."""
        self.engine.memory = Memory()
        try:
            self.seconds([work])
            return self.engine.memory.n_failed == 0
        except (OutOfMemory, RuntimeError, MemoryError) as error:  # in the step, too, whose moments are made now
            if not is_out_of_memory(error):
                raise
            return False
        finally:
            self.engine.optimizers.zero_grad()

    def close(self) -> None:
        """Give the memory back."""
        del self.engine
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def require_extras(recipe: Recipe, *, logs: bool = True) -> None:
    """Raise MachineError where a package or COMET model of training is not here. logs: this rank logs and measures."""
    for extra, is_wanted in (("tensorboard", recipe.train.tensorboard), ("wandb", recipe.train.wandb)):
        if is_wanted and logs:
            require(extra, f"train.{extra}")
    if logs:
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
    """The model of a recipe with its first weights, which follow from the seed."""
    torch.manual_seed(recipe.seed % 2**63)  # which takes no more
    model = build_model(recipe.model, data.subwords.src.n_vocab, data.subwords.trg.n_vocab, PAD).to(device)
    if recipe.train.checkpoint_activations:
        model.recompute_activations()
    if recipe.train.compiled:
        compile_parts(model, recipe)
    return model


# Whether a model is compiled, and how.

# Of base and big in packed rows in bf16, on one H200.
_SECONDS = 50  # more until the first update: big began after 53, and 4 without
_FASTER = 1.3  # big, without CUDA graphs: 254,000 target tokens/s, and 192,000 without
_UTILISATION = 0.25  # of the peak, not compiled: big, and base less than half as much
PAYS_FROM = 2 * _SECONDS / (1 - 1 / _FASTER)  # seconds of a run; twice, as others take longer to compile


def decide_compile(
    recipe: Recipe, model: TranslationModel, precision: Precision, ranks: Ranks, begun: bool | None = None
) -> tuple[Recipe, str]:
    """Return the recipe with true or false for auto in train.compile, and why; a model that auto compiles is compiled.
    begun: the decision of the run that goes on, which must round as it began, whatever its end is now; None: a new one.
    """
    if recipe.train.compile != "auto":
        return recipe, "as the recipe says"
    device, n_param = model.device, sum(p.numel() for p in model.parameters())
    peak = peak_flops(device, precision.name) * ranks.world_size if device.type == "cuda" else 0.0
    yes, why = begun, "as the run began"
    if yes is None or recipe.train.parallel == "fsdp":
        yes, why = ranks.of_main(lambda: compile_pays(recipe, device.type, n_param, peak))
    if yes and ranks.any(not ops.can_compile(device)):
        yes, why = False, "it needs Triton, a C compiler and a GPU of Ampere or later"
    train = recipe.train.model_copy(update={"compile": yes, "cuda_graphs": yes and recipe.train.cuda_graphs})
    recipe = recipe.model_copy(update={"train": train})
    if yes:
        compile_parts(model, recipe)
    return recipe, why


def compile_pays(recipe: Recipe, device: str, n_param: int, peak: float) -> tuple[bool, str]:
    """Return whether auto compiles a new run, and why. device: cpu or cuda. peak: operations (FLOP) a second of all
    devices together, 0 where it is not known."""
    train, batch = recipe.train, recipe.batch
    if device != "cuda":
        return False, "on a CPU it is slower"
    if train.cuda_graphs:
        return True, "train.cuda_graphs needs it"
    if not batch.packed or train.checkpoint_activations or train.parallel == "fsdp":
        return False, "its gain is known for batch.packed only, without train.checkpoint_activations or fsdp"
    seconds = train.budget_seconds or math.inf  # that the run takes at most
    if peak:
        assert batch.max_tokens != "auto"
        n_token = train.updates * (batch.tokens_per_update or batch.per_update * batch.max_tokens)
        seconds = min(seconds, 6 * n_param * n_token / (_UTILISATION * peak))
    if seconds == math.inf:
        return False, "the peak of this GPU is not known, and so not how long the run takes"
    return seconds >= PAYS_FROM, f"the run takes about {duration(seconds)}, and it pays from {duration(PAYS_FROM)} on"


def compile_parts(model: TranslationModel, recipe: Recipe) -> None:
    """Compile the large parts of a model in place: no wrapper, so no parameter changes its name."""
    seq = torch.full((1, recipe.data.max_len + 1), PAD, device=model.device)
    with torch.no_grad():
        model.decode_hidden(seq, seq)  # tables of positions that grew later would have it compiled again
    stacks = [part for part in model.children() if list(part.children())]  # in one matrix there is nothing to fuse
    from torch._inductor import list_options  # which brings the compiler with it

    options: dict[str, str | int | bool | Callable[..., Any]] = {"triton.cudagraphs": recipe.train.cuda_graphs}
    # On a GPU it takes sums over rows and over columns, as the gradient of a norm is made of, for one pass; where rows
    # are as short as here that takes longer than two: base trained 7 % slower on an H200.
    if "triton.mix_order_reduction" in list_options():
        options["triton.mix_order_reduction"] = False
    for part in stacks:
        part.compile(dynamic=not recipe.batch.packed, options=options)
