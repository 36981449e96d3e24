"""One rank of a training run, started by test_parallel.py: recipe file [double] -> run folder."""

import sys
from pathlib import Path

import torch

from nmt.recipe.reader import load_resolved
from nmt.training import launch as room

torch.set_num_threads(1)
if sys.argv[2:] == ["double"]:
    make = room.new_model
    room.new_model = lambda *args: make(*args).double()
room.launch(load_resolved(Path(sys.argv[1])))
