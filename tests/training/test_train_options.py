"""Each option of the section train arrives where it does what it says: see test_options_arrive.py for the others."""

from itertools import count
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from nmt import checkpoint
from nmt.data.batching.batches import Batch
from nmt.data.stored.corpus import Prepared
from nmt.errors import MachineError
from nmt.models.build import build_model
from nmt.native import kernels
from nmt.recipe.training_options import TrainConfig
from nmt.run import Run
from nmt.training import keeper, parallel, precision
from nmt.training.checking.check import check as check_recipe
from nmt.training.checking.selftest import selftest
from nmt.training.engine import Engine
from nmt.training.losses import objective
from nmt.training.out_of_memory import Work
from nmt.training.parallel import Ranks
from nmt.training.precision import Precision
from nmt.training.ranks import roll_call
from nmt.training.ranks.sharding import is_cut
from nmt.training.starting import launch, materials
from nmt.training.state import TrainState
from tests.training.test_options_arrive import FP32, Row, check, ids
from tests.training.test_train_options_foreseen import CHECK, PLAN, SIZE
from tests.training.test_train_options_in_runs import RUN

CPU = torch.device("cpu")

# -- what a run begins with --------------------------------------------------------------------------------------------

# In nmt-train, --check and --selftest, on a machine with a GPU and a processor that is fast in bf16.
ON_CPU = {"device": "cpu"}
BEGIN = [
    Row("device", "cpu", "device", ["cpu"] * 3),
    Row("threads", 2, "threads", [2] * 3),
    Row("precision", "fp32", "dtype", [torch.float32] * 3, ON_CPU),
    Row("precision", "bf16", "dtype", [torch.bfloat16] * 3, {**ON_CPU, "precision": "fp32"}),
    Row("precision", "fp16", "scaled", [True] * 3),
    Row("kernels", "torch", "kernels", [False] * 3, ON_CPU),
]


class Begun(Exception):
    """All that is to be seen was."""


@pytest.fixture
def of_begin(recipe_of, monkeypatch):
    """of_begin(option=value, ...) -> how each command is about to compute."""
    numbers, n_thread = count(), torch.get_num_threads()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    monkeypatch.setattr(precision, "_speeds", lambda _: {"fp32": 1.0, "fp32 through oneDNN": 1.0, "bf16": 9.0})
    monkeypatch.setattr(precision, "set_up", lambda _: None)
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda _: None)
    monkeypatch.setattr(kernels, "why_not", lambda: "")
    apply = Precision.apply

    def seen(**options):
        recipe = recipe_of(f"run-{next(numbers)}", train={"precision": "auto", **options})
        found = SimpleNamespace(device=[], threads=[], dtype=[], scaled=[], kernels=[])

        def noted(self):
            apply(self)
            found.device.append(self.device)
            found.threads.append(torch.get_num_threads())
            found.scaled.append(self.name == "fp16" and Precision(self.name, "", "cpu").scaler().is_enabled())
            if self.device == "cpu":
                with self.autocast():
                    found.dtype.append(torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype)
            raise Begun

        monkeypatch.setattr(kernels, "use", lambda wanted, **_: found.kernels.append(wanted))
        monkeypatch.setattr(Precision, "apply", noted)
        for command in (
            launch.launch,
            lambda known: check_recipe(known, lambda _: None),
            lambda known: [*selftest(known)],
        ):
            torch.set_num_threads(3)
            with pytest.raises(Begun):
                command(recipe)
        return found

    yield seen
    torch.set_num_threads(n_thread)


@pytest.mark.parametrize("row", BEGIN, ids=ids)
def test_an_option_of_the_arithmetic_arrives_in_every_command(row, of_begin):
    check(row, of_begin)


# -- several processes -------------------------------------------------------------------------------------------------

RANKS = [
    Row("timeout", 60.0, "waited", 61.0),  # a look a second
    Row("timeout", 60.0, "for_the_store", 60.0),
    Row("timeout", 60.0, "silence", 60.0),
    Row("parallel", "fsdp", "cut", True),
    Row("parallel", "fsdp", "twin", True),
]


@pytest.fixture
def of_ranks(recipe_of, monkeypatch):
    """of_ranks(option=value, ...) -> how rank 0 of two waits for others, and how its model lies on the devices."""

    def seen(**options):
        recipe, clock, found = recipe_of(train={"device": "cpu", **options}), [0.0], SimpleNamespace()

        def rendezvous(_, timeout):
            found.for_the_store = timeout.total_seconds()
            yield dist.HashStore(), 0, 2

        def watch(_store, _rank, _cards, timeout):
            found.silence = timeout
            raise Begun

        with monkeypatch.context() as patch:
            for name, value in {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "here", "MASTER_PORT": "1"}.items():
                patch.setenv(name, value)
            a_second = SimpleNamespace(monotonic=lambda: clock[-1], sleep=lambda _: clock.append(clock[-1] + 1))
            patch.setattr(roll_call, "time", a_second)
            patch.setattr(dist, "rendezvous", rendezvous)
            with pytest.raises(MachineError, match="has not come"):
                launch.launch(recipe)
            patch.setattr(parallel, "meet", lambda store, *_: (store, []))
            patch.setattr(parallel, "Watch", watch)
            with pytest.raises(Begun):
                launch.launch(recipe)
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            model = build_model(recipe.model, 320, 320)
            engine = Engine(model, recipe, precision=FP32, ranks=Ranks(0, 2))
            with engine.whole_model() as whole:
                found.twin = whole is not model
            found.cut = any(map(is_cut, model.parameters()))
        finally:
            dist.destroy_process_group()
        found.waited = clock[-1]
        return found

    return seen


@pytest.mark.parametrize("row", RANKS, ids=ids)
def test_an_option_of_several_processes_arrives(row, of_ranks):
    check(row, of_ranks)


# -- an update ---------------------------------------------------------------------------------------------------------

COMPILED = {"compile": True}
UPDATE = [
    Row("label_smoothing", 0.3, "smoothing", 0.3),
    Row("ema", 0.75, "share_of_old", 0.75),
    Row("ema", 0.75, "average_goes_on", True),
    Row("freeze", "decoder.*", "in_optimizer", {"encoder"}),
    Row("compile", True, "compiled", ["Encoder", "Decoder"]),
    Row("compile", True, "loss_compiled", True),
    Row("compile", True, "packs", False),
    Row("cuda_graphs", True, "replays", {True}, COMPILED),
    Row("cuda_graphs", True, "n_saved", 1, COMPILED),
    Row("cuda_graphs", True, "n_mark", 2, COMPILED),
    Row("checkpoint_activations", True, "n_pass", 4),
]


def saved_and_restored(engine, recipe):
    """Another engine that goes on where this one is."""
    other = Engine(build_model(recipe.model, 320, 320), recipe, precision=FP32, ranks=Ranks())
    run = Run(recipe.run_folder)
    run.folder.mkdir(exist_ok=True)
    with run.lock():
        keeper.save(run, recipe, engine, TrainState(1))
    keeper.restore(run.checkpoint(1), checkpoint.verify(run.checkpoint(1)), other)
    return other


@pytest.fixture
def of_update(recipe_of, monkeypatch):
    """of_update(option=value, ...) -> how a model is trained with an update of two batches."""

    def seen(**options):
        recipe = recipe_of(
            model={"dropout": 0.0}, batch={"packed": True, "max_tokens": 257}, optim={"warmup": 0}, train=options
        )
        found = SimpleNamespace(
            compiled=[], replays=set(), n_mark=0, n_saved=0, n_pass=0, share_of_old=None, average_goes_on=None
        )
        cross_entropy = objective.smoothed_cross_entropy

        def compile_part(part, *, options, dynamic):
            found.compiled.append(type(part).__name__)
            found.replays.add(options["triton.cudagraphs"])

        def not_compiled(*args, compiled, **known):
            found.loss_compiled = compiled
            return cross_entropy(*args, compiled=False, **known)

        def count_mark():
            found.n_mark += 1

        def count_saved(*_):
            found.n_saved += 1

        def count_pass(*_):
            found.n_pass += 1

        with monkeypatch.context() as patch:
            patch.setattr(nn.Module, "compile", compile_part)
            patch.setattr(objective, "smoothed_cross_entropy", not_compiled)
            patch.setattr(torch.compiler, "cudagraph_mark_step_begin", count_mark)
            patch.setattr(Engine, "_save_gradients", count_saved)
            patch.setattr(materials, "choose_precision", lambda *_: FP32)
            trial = materials.make_trial(recipe, Prepared.open(recipe.data_folder), CPU)
            engine, model = trial.engine, trial.engine.model
            model.encoder.layer_stack[0].register_forward_pre_hook(count_pass)
            torch.manual_seed(0)
            batch = Batch(*(torch.randint(9, 300, (3, n)) for n in (7, 5, 5)), n_gold=15)
            rows = model(batch.src_seq, batch.trg_seq).detach().flatten(0, 1).log_softmax(-1)
            found.n_pass = 0
            engine.backward([Work(batch), Work(batch)], 15)
        gold = -rows.gather(1, batch.gold.flatten().unsqueeze(1)).sum()
        even = -rows[:, 1:].mean(1).sum()
        found.smoothing = round(float((engine._loss_sum / 2 - gold) / (even - gold)), 3)
        names = {param: name.split(".")[0] for name, param in model.named_parameters()}
        groups = [group for optimizer, _ in engine.optimizers.parts for group in optimizer.param_groups]
        found.in_optimizer = {names[param] for group in groups for param in group["params"]}
        old = [param.detach().clone() for param in model.parameters()]
        engine.step(1.0, 1000)
        engine.settle()
        found.packs = Engine(model, recipe, precision=Precision("fp32", "", "cpu", kernels=True), ranks=Ranks()).packs
        if engine.ema:
            average, before, now = (
                torch.cat([t.detach().flatten() for t in ts]) for ts in (engine.ema, old, model.parameters())
            )
            found.share_of_old = round(float((average - now).norm() / (before - now).norm()), 3)
            found.average_goes_on = all(map(torch.equal, engine.ema, saved_and_restored(engine, recipe).ema))
        return found

    return seen


@pytest.mark.parametrize("row", UPDATE, ids=ids)
def test_an_option_of_an_update_arrives(row, of_update):
    check(row, of_update)


# -- the tables --------------------------------------------------------------------------------------------------------


def test_the_tables_have_every_option_of_the_section():
    rows = BEGIN + RANKS + UPDATE + PLAN + CHECK + SIZE + RUN
    assert {row.option for row in rows} == set(TrainConfig.model_fields)
