"""Processes that train together, for the tests."""

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
    """Asked once an update whether to stop; does something else at the n-th time."""

    what, left = "", -1

    def __call__(self):
        Faulty.left -= 1
        if Faulty.left == 0:
            if self.what == "SIGKILL":
                os.kill(os.getpid(), signal.SIGKILL)
            elif self.what == "error":
                raise RuntimeError("a wheel came off")
            elif self.what == "hang":
                time.sleep(16)
            elif self.what == "drift":
                drift()
        return super().__call__() or (self.what == "stop" and Faulty.left <= 0)


def drift():
    """Make this rank's weights wrong from the next update on."""
    step = Engine.step

    def wrong(engine, *args, **kwargs):
        step(engine, *args, **kwargs)
        next(engine.model.parameters()).detach().view(-1)[0] += 1e-6

    Engine.step = wrong


def be_rank(recipes, said, fault=None, environment=None, ports=()):
    """Train some recipes as the rank that the environment names. fault: {rank: [what, at which update]}."""
    os.environ.update(environment or {})
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    if fault and rank in fault and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        Faulty.what, Faulty.left = fault[rank]
        train.Stop = Faulty
    os.dup2(os.open(f"{said}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), 2)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), encoding="utf-8", line_buffering=True)
    for number, recipe in enumerate(recipes):
        if ports:
            os.environ["MASTER_PORT"] = str(ports[number])
        if code := train.main([recipe]):
            os._exit(code)


def torchrun(world_size, said, *job):
    """torchrun itself, but for reading the command line."""
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT, 0o644), 2)
    at = {"rdzv_backend": "c10d", "rdzv_endpoint": "127.0.0.1:0", "local_addr": "127.0.0.1"}
    how = {"max_restarts": 1, "monitor_interval": 0.1, "start_method": "fork"}
    elastic_launch(LaunchConfig(1, 1, world_size, run_id="test", **at, **how), be_rank)(*job)
