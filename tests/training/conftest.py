"""A tiny corpus and recipe that trains in a second, and processes that train it together."""

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
    draw = random.Random(seed)
    lines = [[draw.choice(WORDS) for _ in range(draw.randint(2, 9))] for _ in range(n)]
    (folder / f"{name}.de").write_text("".join(" ".join(line) + "\n" for line in lines), encoding="utf-8", newline="\n")
    english = ("".join(" ".join(TRANSLATION[word] for word in line) + "\n") for line in lines)
    (folder / f"{name}.en").write_text("".join(english), encoding="utf-8", newline="\n")
    return {"src": str(folder / f"{name}.de"), "trg": str(folder / f"{name}.en")}


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A folder prepared from 300 training and 12 validation pairs, and the part of a recipe that made it."""
    folder = tmp_path_factory.mktemp("corpus")
    data = {"src_lang": "de", "trg_lang": "en", "out": str(folder / "prepared"), "max_ratio": 9.0}
    data |= {"train": [write_pairs(folder, "train", 300, 1)], "valid": write_pairs(folder, "valid", 12, 2)}
    subwords = {"vocab_size": 320}
    prepare(Recipe.model_validate({"name": "tiny", "data": data, "subwords": subwords}), folder / "prepared")
    return {"data": data, "subwords": subwords}


MODEL = {"d_model": 16, "d_inner": 32, "n_enc_layer": 1, "n_dec_layer": 1, "n_head": 2, "dropout": 0.2, "norm": "pre"}


def merged(tree, sections):
    """The sections of a recipe with other options in some of them; a model of another architecture takes the place."""
    found = dict(tree)
    for name, more in sections.items():
        keeps = isinstance(more, dict) and "architecture" not in more
        found[name] = {**tree.get(name, {}), **more} if keeps else more
    return found


def make_recipe(corpus, out, **sections):
    """A recipe for a run in the folder `out`: section={option: value}, ..."""
    tree = {
        "name": "tiny",
        "seed": 3,
        **corpus,
        "model": MODEL,
        "batch": {"max_tokens": 120, "per_update": 2},
        "optim": {"lr": 3e-3, "schedule": "constant", "warmup": 5, "clip": 1.0},
        "train": {"out": str(out), "updates": 30, "save_every": 7, "log_every": 5, "precision": "fp32"},
        "valid": {"every": 10, "max_tokens": 400},
        "decode": {"max_len_a": 0.5, "max_len_b": 3},  # an untrained model knows no end
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
def whole(corpus, tmp_path_factory):
    """The recipe of a short run that nothing happened to. Read only."""
    recipe = make_recipe(corpus, tmp_path_factory.mktemp("uninterrupted") / "whole", **SHORT)
    assert launch(recipe) == "done"
    return recipe


@pytest.fixture
def finished(whole, short_of):
    """The recipe of a copy of that run."""
    recipe = short_of()
    shutil.copytree(whole.run_folder, recipe.run_folder)
    return recipe


@pytest.fixture
def late_engines(monkeypatch):
    """Call it, and engines on the CPU behave as on a GPU from then on."""
    begin = Engine.__init__

    def init(self, *args, **kwargs):
        begin(self, *args, **kwargs)
        assert not self.is_async and self.optimizers.skips_on_device
        self.is_async = True

    return lambda: monkeypatch.setattr(Engine, "__init__", init)


class Group:
    """Ranks of one run, and the stores that they meet in. said: the name of what each printed to stderr."""

    def __init__(self, processes, said, stores=()):
        self.processes, self.said, self.stores = processes, said, stores
        for process in processes:
            process.start()

    def wait(self, seconds=120):
        """Exit codes, negative for signals; None for who still runs."""
        deadline = time.monotonic() + seconds
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        return [process.exitcode for process in self.processes]

    def words(self, rank):
        return Path(f"{self.said}.{rank}").read_text(encoding="utf-8")


@pytest.fixture
def start(tmp_path):
    """start(recipe, ..., fault={rank: [what, at which update]}) -> Group that trains them one after the other."""
    from tests.training import ranks  # which takes a second

    # Processes are forked from one that has imported torch.
    context, groups = multiprocessing.get_context("forkserver"), []
    context.set_forkserver_preload(["pytest", "tests.training.ranks"])

    def start(*recipes, world_size=2, absent=(), torchrun=False, fault=None):
        said = str(tmp_path / f"said{len(groups)}")
        files = [f"{said}.{number}.yaml" for number in range(len(recipes))]
        for recipe, file in zip(recipes, files, strict=True):
            write_recipe(recipe, Path(file))
        if torchrun:
            args = (world_size, said, files, said, fault)
            groups.append(Group([context.Process(target=ranks.torchrun, args=args)], said))
            return groups[-1]
        # What torchrun does, without its start-up time: ranks that meet in a store, another one for each recipe.
        store_of = partial(TCPStore, "127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=False)
        stores = [store_of() for _ in recipes]
        shared = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
        processes = [
            context.Process(
                target=ranks.be_rank,
                args=(files, said, fault, {**shared, "RANK": rank, "LOCAL_RANK": rank}, [one.port for one in stores]),
            )
            for rank in map(str, range(world_size))
            if int(rank) not in absent
        ]
        groups.append(Group(processes, said, stores))
        return groups[-1]

    yield start
    for process in (process for group in groups for process in group.processes):
        process.kill()
