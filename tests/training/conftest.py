"""Tiny corpus, recipes that train on it in a second, and processes that train as ranks of one run."""

import multiprocessing
import random
import shutil
import time
from functools import partial
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from nmt.data.prepare import prepare
from nmt.recipe.options import Recipe
from nmt.recipe.reader import write_recipe
from nmt.training.engine import Engine
from nmt.training.launch import launch

TRANSLATION = {
    "ein": "a", "der": "the", "Mann": "man", "Hund": "dog", "rot": "red", "blau": "blue", "läuft": "runs",
    "sitzt": "sits", "groß": "big", "klein": "small", "zwei": "two", "drei": "three", "Haus": "house", "Ball": "ball",
    "spielt": "plays", "im": "in", "Park": "park",
}  # fmt: skip
WORDS = list(TRANSLATION)


def write_pairs(folder, name, n, seed):
    rng = random.Random(seed)
    lines = [[rng.choice(WORDS) for _ in range(rng.randint(2, 9))] for _ in range(n)]
    (folder / f"{name}.de").write_text("".join(" ".join(line) + "\n" for line in lines), encoding="utf-8", newline="\n")
    english = ("".join(" ".join(TRANSLATION[word] for word in line) + "\n") for line in lines)
    (folder / f"{name}.en").write_text("".join(english), encoding="utf-8", newline="\n")
    return {"src": str(folder / f"{name}.de"), "trg": str(folder / f"{name}.en")}


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Recipe sections of data that were prepared from 300 training and 12 validation pairs."""
    folder = tmp_path_factory.mktemp("corpus")
    data = {"src_lang": "de", "trg_lang": "en", "out": str(folder / "prepared"), "max_ratio": 9.0}
    data |= {"train": [write_pairs(folder, "train", 300, 1)], "valid": write_pairs(folder, "valid", 12, 2)}
    subwords = {"vocab_size": 320}
    prepare(Recipe.model_validate({"name": "tiny", "data": data, "subwords": subwords}), folder / "prepared")
    return {"data": data, "subwords": subwords}


MODEL = {"d_model": 16, "d_inner": 32, "n_enc_layer": 1, "n_dec_layer": 1, "n_head": 2, "dropout": 0.2, "norm": "pre"}


def merged(tree, sections):
    """Return recipe sections with changed options; a section that names an architecture is replaced as a whole."""
    result = dict(tree)
    for name, options in sections.items():
        is_merged = isinstance(options, dict) and "architecture" not in options
        result[name] = {**tree.get(name, {}), **options} if is_merged else options
    return result


def make_recipe(corpus, out, **sections):
    """Return a recipe for a run in the folder `out`. sections: section={option: value}, ..."""
    tree = {
        "name": "tiny",
        "seed": 3,
        **corpus,
        "model": MODEL,
        "batch": {"max_tokens": 120, "per_update": 2},
        "optim": {"lr": 3e-3, "schedule": "constant", "warmup": 5, "clip": 1.0},
        "train": {"out": str(out), "updates": 30, "save_every": 7, "log_every": 5, "precision": "fp32"},
        "valid": {"every": 10, "max_tokens": 400},
        "decode": {"max_len_a": 0.5, "max_len_b": 3},  # an untrained model predicts no end of sentence
    }
    return Recipe.model_validate(merged(tree, sections))


@pytest.fixture
def recipe_of(corpus, tmp_path):
    """recipe_of(run name, section={option: value}, ...) -> Recipe."""
    return lambda run="run", **sections: make_recipe(corpus, tmp_path / run, **sections)


# Two epochs of six updates.
SHORT = {"batch": {"max_tokens": 400}, "train": {"updates": 12, "save_every": 3, "log_every": 1}, "valid": {"every": 4}}


@pytest.fixture
def short_of(recipe_of):
    """short_of(run name, section={option: value}, ...) -> Recipe of a run of twelve updates."""
    return lambda run="run", **sections: recipe_of(run, **merged(SHORT, sections))


@pytest.fixture(scope="session")
def uninterrupted(corpus, tmp_path_factory):
    """Recipe of a short run that was never interrupted. Read only."""
    recipe = make_recipe(corpus, tmp_path_factory.mktemp("uninterrupted") / "whole", **SHORT)
    assert launch(recipe) == "done"
    return recipe


@pytest.fixture
def finished(uninterrupted, short_of):
    """Recipe of a copy of the uninterrupted run."""
    recipe = short_of()
    shutil.copytree(uninterrupted.run_folder, recipe.run_folder)
    return recipe


@pytest.fixture
def make_async(monkeypatch):
    """make_async(): make engines on the CPU asynchronous, as on a GPU."""
    begin = Engine.__init__

    def init(self, *args, **kwargs):
        begin(self, *args, **kwargs)
        assert not self.is_async and self.optimizers.skips_on_device
        self.is_async = True

    return lambda: monkeypatch.setattr(Engine, "__init__", init)


class Group:
    """Ranks of one run, and the stores that they meet in. log: path of what each printed, without `.rank`."""

    def __init__(self, processes, log, stores=()):
        self.processes, self.log, self.stores = processes, log, stores
        for process in processes:
            process.start()

    def wait(self, seconds=120):
        """Return the exit codes: negative for signals, None for processes that still run."""
        deadline = time.monotonic() + seconds
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        return [process.exitcode for process in self.processes]

    def stderr_of(self, rank):
        return Path(f"{self.log}.{rank}").read_text(encoding="utf-8")


@pytest.fixture
def start_ranks(tmp_path):
    """start_ranks(recipe, ..., fault={rank: [kind, update]}) -> Group that trains the recipes one after another."""
    from tests.training import ranks  # slow to import

    # Processes are forked from one that has imported torch.
    context, groups = multiprocessing.get_context("forkserver"), []
    context.set_forkserver_preload(["pytest", "tests.training.ranks"])

    def start_ranks(*recipes, world_size=2, absent=(), torchrun=False, fault=None):
        log = str(tmp_path / f"said{len(groups)}")
        files = [f"{log}.{number}.yaml" for number in range(len(recipes))]
        for recipe, file in zip(recipes, files, strict=True):
            write_recipe(recipe, Path(file))
        if torchrun:
            args = (world_size, log, files, log, fault)
            groups.append(Group([context.Process(target=ranks.torchrun, args=args)], log))
            return groups[-1]
        # As torchrun, without its start-up time: ranks meet in a store, a new one for each recipe.
        store_of = partial(TCPStore, "127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=False)
        stores = [store_of() for _ in recipes]
        env = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
        processes = [
            context.Process(
                target=ranks.train_as_rank,
                args=(files, log, fault, {**env, "RANK": rank, "LOCAL_RANK": rank}, [store.port for store in stores]),
            )
            for rank in map(str, range(world_size))
            if int(rank) not in absent
        ]
        groups.append(Group(processes, log, stores))
        return groups[-1]

    yield start_ranks
    for process in (process for group in groups for process in group.processes):
        process.kill()
