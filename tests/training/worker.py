"""One rank of a training run, started by test_parallel.py: recipe file -> run folder."""

import sys
from pathlib import Path

import torch

from nmt.recipe.reader import load_resolved
from nmt.training.launch import launch

torch.set_num_threads(1)
launch(load_resolved(Path(sys.argv[1])))
