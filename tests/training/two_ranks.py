"""Two processes that find each other by the environment, which is what torchrun sets, without its start-up time."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from nmt.recipe.reader import write_recipe


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def run_on_two(recipe, folder, worker, *args):
    """What torchrun does, without its start-up time: two processes that find each other by the environment.

    args: what each rank is told beside the recipe, with {rank} for its number.
    """
    file = folder / "recipe.yaml"
    write_recipe(recipe, file)
    here = str(Path(__file__).parents[2])
    group = {
        "PYTHONPATH": here,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, str(worker), str(file), *(arg.replace("{rank}", str(rank)) for arg in args)],
            env={**os.environ, **group, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=300)[1] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0, 0], said
    return said
