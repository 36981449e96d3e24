"""Processes that train together, for the tests: started once, then forked, since to import torch takes seconds.

One JSON object a line comes in and goes out. {"launch": ...} starts ranks as torchrun does and tells their process
numbers, {"elastic": ...} starts torchrun's own engine, {"wait": ...} tells the exit codes. With "legs", numbers of
updates, the ranks train so long at a time and note which pairs they saw.
"""

import io
import json
import os
import signal
import socket
import sys
import time

import torch
import torch._dynamo
import torch.distributed.fsdp
import torch.distributed.tensor
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from witness import train_one_rank

from nmt.cli import train
from nmt.training import parallel
from nmt.training.engine import Engine
from nmt.training.validate import Validator

torch.set_num_threads(1)

KEPT = []  # what must not be collected while this process lives


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Faulty(train.StopSignal):
    """Asked once an update whether to stop; does something else at the n-th time."""

    what, left = "", -1

    def __call__(self):
        Faulty.left -= 1
        if Faulty.left == 0:
            if self.what in ("SIGKILL", "SIGSTOP"):
                os.kill(os.getpid(), getattr(signal, self.what))
            elif self.what == "exit":
                os._exit(0)
            elif self.what == "error":
                raise RuntimeError("a wheel came off")
            elif self.what == "hang":
                time.sleep(1000)
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


def be_rank(job):
    """Train as the rank that the environment names. fault: {rank: [what, at which update]}."""
    fault = job.get("fault", {}).get(os.environ["RANK"])
    if fault and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        Faulty.what, Faulty.left = fault
        train.StopSignal = Faulty
        join = parallel.join
        parallel.join = lambda device, timeout, _: join(device, timeout)  # it counts updates, not looks for others
    if "slow_validation" in job:
        measure = Validator.measure
        Validator.measure = lambda *args: time.sleep(job["slow_validation"]) or measure(*args)
    said = os.open(f"{job['said']}.{os.environ['RANK']}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(said, 2)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), encoding="utf-8", line_buffering=True)
    if "legs" in job:
        train_one_rank(job["recipes"][0], f"{job['said']}.{os.environ['RANK']}.seen", job["legs"])
        return 0
    # A second recipe finds the place where the ranks met for the first.
    if len(job["recipes"]) > 1:
        KEPT.append(next(torch.distributed.rendezvous("env://")))
    for recipe in job["recipes"]:
        if code := train.main([recipe]):
            break
    return code


def fork(body):
    """Run body() in a child and leave with its code. Returns the process number."""
    if child := os.fork():
        return child
    code = 70
    try:
        code = body()
    finally:
        os._exit(code)


def launch(job):
    """What torchrun does, without its start-up time: ranks that find each other by the environment."""
    n, port = job["world_size"], free_port()
    if "legs" in job:
        job["legs"] = [(length, free_port()) for length in job["legs"]]
    group = {"WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}

    def rank(number):
        os.environ.update(group, RANK=str(number), LOCAL_RANK=str(number))
        return be_rank(job)

    return [fork(lambda number=number: rank(number)) for number in range(n) if number not in job.get("absent", [])]


def elastic(job):
    """torchrun itself, but for reading the command line."""
    config = LaunchConfig(
        1,
        1,
        job["world_size"],
        run_id="test",
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        max_restarts=job["max_restarts"],
        monitor_interval=0.1,
        start_method="fork",
        local_addr="127.0.0.1",
    )

    def torchrun():
        os.dup2(os.open(job["said"], os.O_WRONLY | os.O_CREAT, 0o644), 2)
        elastic_launch(config, elastic_rank)(job)
        return 0

    return [fork(torchrun)]


def elastic_rank(job):
    if code := be_rank(job):
        os._exit(code)


def wait(processes, seconds):
    """Exit codes, negative for signals; None for who still runs."""
    codes, deadline = dict.fromkeys(processes), time.monotonic() + seconds
    while None in codes.values() and time.monotonic() < deadline:
        for process in [process for process, code in codes.items() if code is None]:
            found, status = os.waitpid(process, os.WNOHANG)
            if found:
                codes[process] = os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    return list(codes.values())


if __name__ == "__main__":
    for line in sys.stdin:
        job = json.loads(line)
        if "launch" in job:
            answer = launch(job["launch"])
        elif "elastic" in job:
            answer = elastic(job["elastic"])
        else:
            answer = wait(**job["wait"])
        print(json.dumps(answer), flush=True)
