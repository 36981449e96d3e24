"""Values for `auto` in a recipe: chosen once for a run, stored in its recipe, equal on all ranks, and kept on resume.

`precision: auto` is not resolved here: it depends on the device, which may change between two parts of a run.
"""

import itertools
import math
import shutil
from collections.abc import Callable
from contextlib import closing
from typing import Any

from pydantic import ValidationError
from torch import nn

from nmt import checkpoint
from nmt.data.corpus import Prepared
from nmt.data.plan import Plan
from nmt.errors import MachineError, RecipeError
from nmt.progress import Bar
from nmt.recipe.complaints import validation_complaints
from nmt.recipe.model_options import PRESETS, preset_for
from nmt.recipe.options import Recipe
from nmt.recipe.training_options import BatchConfig
from nmt.run import Run
from nmt.training.engine import size
from nmt.training.feed import Feed
from nmt.training.materials import Trial
from nmt.training.memory import Work
from nmt.training.parallel import Ranks

LEAST = 512  # tokens of the smallest batch that is tried
_MARGIN = 1.15  # a batch larger by this factor must fit, too
_CPU_TOKENS = 2048  # of a batch; larger ones are hardly faster on a CPU
_N_SAMPLED = 200  # batches that represent the corpus
_UPDATE_SHARE = 0.8  # of a time budget: the rest is for validations and checkpoints
_UPDATES_PER_EPOCH = 100  # at least, if the size of the update depends on that of the batch
_MIN_UPDATES = 2500  # for fewer updates a smaller preset learns more
_MIN_DROPOUT, _DROPOUT_PER_EPOCH = 0.1, 0.01  # fewer epochs overfit less


def resolve(recipe: Recipe, data: Prepared, begun: Recipe | None, ranks: Ranks, say: Callable[[str], None]) -> Recipe:
    """Return the recipe with a value for every `auto` that training needs. begun: the recipe of a run that is resumed,
    None for a new run. say: called with a message for each choice and its reason."""
    n_in_time = 0
    if begun is not None:
        budget = begun.train.time_budget
        if budget and "time_budget" not in recipe.train.model_fields_set:  # it was given on the command line
            recipe = recipe.with_options(train={"time_budget": budget})
            say(f"train.time_budget: {budget}, as the run began (--train.time_budget '' for none)")
        if recipe.model.preset == "auto":
            recipe = sized_as(recipe, begun)
        # Earlier versions stored a choice for train.compile; now the run keeps auto, and its checkpoints the choice.
        kept = ("batch", "max_tokens"), ("optim", "schedule"), ("optim", "warmup"), ("train", "compile")
        for section, name in kept:
            if getattr(getattr(recipe, section), name) == "auto":
                recipe = _with(recipe, section, {name: getattr(getattr(begun, section), name)})
    if recipe.model.preset == "auto":
        recipe, why, n_in_time = _sized(recipe, data, ranks)
        model = recipe.model
        say(
            f"model.preset: auto: {data.train.n_pair:,} pairs, {target_tokens(data) / 1e6:,.1f} M target tokens{why} "
            f"-> {model.preset}: {model.n_enc_layer}+{model.n_dec_layer} layers of width {model.d_model}, dropout "
            f"{model.dropout:g}"
        )
    if recipe.batch.max_tokens == "auto":
        if ranks.device.type == "cuda":
            say("batch.max_tokens: auto: trying batches ...")
        max_tokens = _largest_batch(recipe, data, ranks)
        recipe = _with(recipe, "batch", {"max_tokens": max_tokens})
        limit = "do not fit the memory" if ranks.device.type == "cuda" else "are hardly faster on a CPU"
        say(f"batch.max_tokens: auto: {max_tokens:,}: larger batches {limit}, or leave few updates an epoch")
    train = recipe.train
    if train.epochs and not (begun and (train.epochs, train.updates) == (begun.train.epochs, begun.train.updates)):
        n_update, why = _updates_of_epochs(recipe, Feed(recipe, data, ranks).plan, ranks)
        recipe = _with(recipe, "train", {"updates": n_update})
        say(f"train.epochs: {train.epochs:,}: {why}")
    train = recipe.train
    if recipe.optim.schedule == "auto":
        recipe = _with(recipe, "optim", {"schedule": "linear" if train.time_budget else "inverse_sqrt"})
    if recipe.optim.warmup == "auto":
        n_update, why = train.updates, ""
        if train.time_budget:
            n_update = n_in_time or _room(recipe, data, ranks)[0]
            why = f" that train.time_budget, {train.time_budget}, has room for"
        warmup, schedule = warmup_of(n_update), recipe.optim.schedule
        say(f"optim.warmup: auto: {warmup:,} of about {n_update:,} updates{why}; optim.schedule: {schedule}")
        recipe = _with(recipe, "optim", {"warmup": warmup})
    if recipe.valid.every == "auto" and not train.time_budget:  # else validation is due by time
        recipe = _with(recipe, "valid", {"every": max(1, min(500, train.updates // 10))})
    return recipe


def target_tokens(data: Prepared) -> int:
    """Return the target tokens of the training pairs, EOS counted."""
    return int(data.train.trg_len.sum()) + data.train.n_pair


def sized_as(recipe: Recipe, run: Recipe) -> Recipe:
    """Return the recipe, with model.preset: auto, with the sizes of a run."""
    sizes = run.model.model_dump(include=recipe.model.undecided)
    return _with(recipe, "model", {**sizes, "preset": run.model.preset})


def _sized(recipe: Recipe, data: Prepared, ranks: Ranks) -> tuple[Recipe, str, int]:
    """Return the recipe with the preset that suits the corpus, a text about the time that it needs, and its updates in
    that time. With a time budget: the largest preset, up to that one, that can be trained in time; else "" and 0."""
    largest, max_dropout = preset_for(target_tokens(data))
    named = recipe.model.model_dump(exclude_unset=True)

    def sized(preset: str, dropout: float) -> Recipe:
        return _with(recipe, "model", {"dropout": dropout, **named, "preset": preset})

    best = None
    presets = list(PRESETS)[: list(PRESETS).index(largest) + 1]
    for preset in presets if recipe.train.time_budget else ():
        try:
            candidate = sized(preset, max_dropout)
        except RecipeError:
            continue  # other options of the recipe contradict so small a model
        if candidate.batch.max_tokens == "auto":
            candidate = _with(candidate, "batch", {"max_tokens": _largest_batch(candidate, data, ranks)})
        n_update, n_epoch = _room(candidate, data, ranks)
        if n_update >= _MIN_UPDATES or not best:
            dropout = min(max_dropout, max(_MIN_DROPOUT, round(_DROPOUT_PER_EPOCH * n_epoch, 2)))
            why = f", in {recipe.train.time_budget} about {n_update:,} updates, {n_epoch:,.1f} epochs"
            best = sized(preset, dropout), why, n_update
        if n_update < _MIN_UPDATES:
            break
    return best or (sized(largest, max_dropout), "", 0)


def _room(recipe: Recipe, data: Prepared, ranks: Ranks) -> tuple[int, float]:
    """Estimate updates and epochs within train.time_budget from the time of a typical update; equal on all ranks."""
    train, batch = recipe.train, recipe.batch
    plain = recipe.with_options(train={"compile": False, "cuda_graphs": False})  # compiling would take minutes
    work = _typical(recipe, data)
    with closing(Trial(plain, data, ranks.device)) as trial:
        trial.seconds(work)  # warm-up
        seconds = trial.seconds(work) / len(work)
    n_token = sum(item.batch.n_gold for item in work) / len(work)
    n_batch = max(1.0, batch.tokens_per_update / n_token) if batch.tokens_per_update else batch.per_update
    seconds *= math.ceil(n_batch / ranks.world_size)
    n_update = ranks.on_main(lambda: min(train.updates, int(_UPDATE_SHARE * train.budget_seconds / seconds)))
    n_epoch = n_update * n_batch * n_token / target_tokens(data)
    if train.epochs and n_epoch > train.epochs:
        n_update, n_epoch = int(n_update * train.epochs / n_epoch), float(train.epochs)
    return n_update, n_epoch


def _typical(recipe: Recipe, data: Prepared) -> list[Work]:
    """Return at most three batches of training: of short, medium and long sentences, without subword sampling."""
    feed = Feed(recipe.with_options(batch={"bpe_dropout": 0.0, "unigram_alpha": 0.0}), data, Ranks())
    some = itertools.islice(itertools.chain.from_iterable(feed.plan.updates(0)), _N_SAMPLED)
    batches = sorted(some, key=lambda rows: int(feed.plan.lengths(rows)[1].max()))
    indices = dict.fromkeys(len(batches) * sixth // 6 for sixth in (1, 3, 5))
    return [Work(feed.batch(batches[i]), True, i) for i in indices]


def _updates_of_epochs(recipe: Recipe, plan: Plan, ranks: Ranks) -> tuple[int, str]:
    """Return the updates of train.epochs, or train.updates if the recipe names fewer, and a message about them."""
    train, origin = recipe.train, recipe.origin
    is_named = "updates" in train.model_fields_set
    if is_named and origin.run and "train.updates" not in origin.given:
        # In the recipe of a run, train.updates may follow from its train.epochs.
        n_before = Run(origin.run).recipe().train.epochs
        is_named = not n_before or train.updates != sum(plan.n_update(epoch) for epoch in range(n_before))
    n_update = 0
    with Bar(total=train.epochs, desc="counting updates", unit=" epochs", disable=not ranks.is_main) as bar:
        for epoch in range(train.epochs):
            n_update += plan.n_update(epoch)
            if is_named and n_update > train.updates:
                return train.updates, f"train.updates, {train.updates:,}, ends the run first; raise it for all epochs"
            bar.update()
    return n_update, f"{n_update:,} updates"


def warmup_of(n_update: int) -> int:
    """Return the warm-up of a run of n_update updates: a twentieth of them, but at least 10 and at most 200."""
    return min(max(10, min(200, n_update // 20)), max(1, n_update))


def _with(recipe: Recipe, section: str, options: dict[str, Any]) -> Recipe:
    """Return the recipe with other options in a section, validated again: a preset may contradict other options."""
    tree = recipe.model_dump(exclude_unset=True)  # the others are defaults, which a preset may change
    tree[section] = {**tree.get(section, {}), **options}
    try:
        return Recipe.model_validate(tree).with_origin(recipe.origin)
    except ValidationError as error:
        complaints = "\n".join(f"{name}: {text}" for name, text in validation_complaints(error))
        raise RecipeError(f"the values chosen for auto and train.epochs contradict the recipe: {complaints}") from None


def most_tokens(batch: BatchConfig, n_token: int, world_size: int) -> int:
    """Return the size of the largest useful batch for a corpus of n_token target tokens."""
    if batch.tokens_per_update:  # each device has a batch in an update
        return max(LEAST, batch.tokens_per_update // world_size)
    return max(LEAST, n_token // (_UPDATES_PER_EPOCH * batch.per_update))


def _largest_batch(recipe: Recipe, data: Prepared, ranks: Ranks) -> int:
    """Return the value of batch.max_tokens: auto, the same on all ranks."""
    most = most_tokens(recipe.batch, target_tokens(data), ranks.world_size)
    if ranks.device.type == "cuda":
        return _largest_on_gpu(Trial(recipe, data, ranks.device), most, ranks)
    return min(most, _CPU_TOKENS)


def _largest_on_gpu(trial: Trial, most: int, ranks: Ranks) -> int:
    """Return the largest batch, of at most `most` tokens, that fits into memory on all ranks with a margin."""
    with closing(trial):
        max_tokens = largest_that_fits(lambda n: trial.fits(trial.longest(int(_MARGIN * n))), LEAST, most)
    if not max_tokens:
        raise MachineError(
            f"batch.max_tokens: auto: not even a batch of {LEAST} tokens (the longest pair has {trial.longest_side}) "
            f"fits the memory of {trial.device}. Make the model smaller, for a Transformer set "
            "train.checkpoint_activations to true, or make data.max_len smaller and prepare the data again."
        )
    return min(ranks.all_gather(max_tokens))


def largest_that_fits(fits: Callable[[int], bool], least: int, most: int) -> int:
    """Return the largest number from least to most that fits, to an eighth; 0 if none does. `fits` must be monotone."""
    good, size = 0, least
    while fits(size):
        good = size
        if good >= most:
            return good
        size = min(2 * good, most)
    bad = size
    while good and bad - good > good // 8:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


# Disk space for the checkpoints of a run, estimated before the first update.


def checkpoint_bytes(model: nn.Module, recipe: Recipe) -> int:
    """Estimate the bytes of a checkpoint: weights, at most two moments, and the moving average if there is one."""
    n_weight = sum(tensor.nbytes for tensor in checkpoint.weights_of(model).values())
    n_moment = 2 * sum(param.nbytes for param in model.parameters() if param.requires_grad)
    return n_weight * (2 if recipe.train.ema else 1) + n_moment


def bytes_needed(recipe: Recipe, n_byte: int) -> int:
    """Return the bytes for all checkpoints of a run, of n_byte each: the newest, the best, and one being written."""
    return (recipe.train.keep_last + recipe.train.keep_best + 1) * n_byte


def check_space(run: Run, recipe: Recipe, model: nn.Module) -> None:
    """Raise MachineError if the checkpoints of a new run will not fit on the disk."""
    n_byte, train = checkpoint_bytes(model, recipe), recipe.train
    needed, free = bytes_needed(recipe, n_byte), shutil.disk_usage(run.folder).free
    if free < needed:
        raise MachineError(
            f"{run.folder}: {size(free)} are free on that disk, and the checkpoints of this run need {size(needed)}: "
            f"{train.keep_last} newest (train.keep_last), {train.keep_best} best (train.keep_best) and the one being "
            f"written, of {size(n_byte)} each. Free some space, keep fewer, or name another disk with --train.out."
        )
