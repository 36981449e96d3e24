"""Processes that train together, for the tests: started once, then forked, since to import torch takes seconds.

One JSON object a line comes in and goes out. {"launch": ...} starts ranks as torchrun does and tells their process
numbers, {"elastic": ...} starts torchrun's own engine, {"wait": ...} tells the exit codes.
"""

import io
import json
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

torch.set_num_threads(1)

STORES = []  # what must not be collected while this process lives


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


def be_rank(job, ports=()):
    """Train as the rank that the environment names. fault: {rank: [what, at which update]}."""
    fault = job.get("fault", {}).get(os.environ["RANK"])
    if fault and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        Faulty.what, Faulty.left = fault
        train.Stop = Faulty
    said = os.open(f"{job['said']}.{os.environ['RANK']}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(said, 2)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), encoding="utf-8", line_buffering=True)
    code = 0
    for number, recipe in enumerate(job["recipes"]):
        if ports:
            os.environ["MASTER_PORT"] = str(ports[number])
        code = code or train.main([recipe])
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
    """What torchrun does, without its start-up time: ranks that meet in a store, another one for each recipe."""
    n, address = job["world_size"], "127.0.0.1"
    stores = [
        torch.distributed.TCPStore(address, 0, is_master=True, wait_for_workers=False, use_libuv=False)
        for _ in job["recipes"]
    ]
    STORES.extend(stores)
    group = {"WORLD_SIZE": str(n), "MASTER_ADDR": address, "TORCHELASTIC_USE_AGENT_STORE": "True"}

    def rank(number):
        os.environ.update(group, RANK=str(number), LOCAL_RANK=str(number))
        return be_rank(job, [store.port for store in stores])

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
