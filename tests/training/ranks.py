"""Processes that train as ranks of one run, with injected faults."""

import io
import os
import signal
import sys
import time

import torch
import torch._dynamo
import torch.distributed.fsdp
import torch.distributed.tensor
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from nmt.cli import train
from nmt.training.engine import Engine


class Faulty(train.Stop):
    """Stop request, called once an update, that injects a fault at the n-th call."""

    kind, n_left = "", -1

    def __call__(self):
        Faulty.n_left -= 1
        if Faulty.n_left == 0:
            if self.kind == "SIGKILL":
                os.kill(os.getpid(), signal.SIGKILL)
            elif self.kind == "error":
                raise RuntimeError("a wheel came off")
            elif self.kind == "hang":
                time.sleep(16)
            elif self.kind == "drift":
                drift()
        return super().__call__() or (self.kind == "stop" and Faulty.n_left <= 0)


def drift():
    """Make this rank's weights wrong from the next update on."""
    step = Engine.step

    def step_wrongly(engine, *args, **kwargs):
        step(engine, *args, **kwargs)
        next(engine.model.parameters()).detach().view(-1)[0] += 1e-6

    Engine.step = step_wrongly


def train_as_rank(recipes, log, fault=None, environment=None, ports=()):
    """Train some recipes as the rank that the environment names. fault: {rank: [kind, update]}."""
    os.environ.update(environment or {})
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    if fault and rank in fault and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        Faulty.kind, Faulty.n_left = fault[rank]
        train.Stop = Faulty
    os.dup2(os.open(f"{log}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), 2)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), encoding="utf-8", line_buffering=True)
    for number, recipe in enumerate(recipes):
        if ports:
            os.environ["MASTER_PORT"] = str(ports[number])
        if code := train.main([recipe]):
            os._exit(code)


def torchrun(world_size, log, *args):
    """Run torchrun without its command line."""
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT, 0o644), 2)
    rendezvous = {"rdzv_backend": "c10d", "rdzv_endpoint": "127.0.0.1:0", "local_addr": "127.0.0.1"}
    options = {"max_restarts": 1, "monitor_interval": 0.1, "start_method": "fork"}
    elastic_launch(LaunchConfig(1, 1, world_size, run_id="test", **rendezvous, **options), train_as_rank)(*args)
