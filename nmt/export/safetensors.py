"""A run folder with nothing in it but what translation reads: recipe, subwords, and the weights of one model.

FOLDER/  recipe.yaml  subwords.json  data.json  model/{model.safetensors, state.json, manifest.json}

`nmt.load` and nmt-translate take it for a run; the weights become fp32 again when they are read.
"""

import json
import shutil
from pathlib import Path

import torch
from torch import Tensor, nn

from nmt import checkpoint
from nmt.errors import RunError
from nmt.models.base import SearchModel
from nmt.models.transformer.Models import LearnedPositions, PositionalEncoding
from nmt.recipe.exports import PRECISIONS
from nmt.recipe.places import DATA_AT
from nmt.run import Run


def copy_front_end(run: Run, folder: Path) -> None:
    """Put recipe, subwords, and what is known of the training data into a folder: what reading and writing take."""
    for file in (run.recipe_file, run.subwords_file):
        shutil.copyfile(file, folder / file.name)
    if run.data_file.exists():
        known = checkpoint.read_json(run.data_file)
        told = {key: value for key, value in known.items() if key != DATA_AT}  # the folder is of no use elsewhere
        text = json.dumps(told, indent=1) + "\n"
        (folder / run.data_file.name).write_text(text, encoding="utf-8", newline="\n")


def export(run: Run, name: str | None, folder: Path, precision: str) -> None:
    """Write the model of a run, or its checkpoint of a name, with weights of that precision.

    Raises RunError for weights that fp16 is too narrow for.
    """
    source = run.weights_folder(name)
    state = checkpoint.verify(source)
    weights = checkpoint.load_tensors(source, checkpoint.MODEL)
    dtype: torch.dtype = getattr(torch, PRECISIONS[precision])
    narrow = {key: tensor.to(dtype) for key, tensor in weights.items() if tensor.is_floating_point()}
    for key, tensor in narrow.items():
        if not torch.isfinite(tensor).all() and torch.isfinite(weights[key]).all():
            raise RunError(f"{source}: {key} holds numbers that are too large for {precision}: take bf16 or fp32.")
    folder.mkdir()
    copy_front_end(run, folder)
    kept = {"update": state["update"], "from": source.name, "precision": precision}
    checkpoint.save(Run(folder).model_folder, {checkpoint.MODEL: weights | narrow}, kept)


def is_exported(folder: Path) -> bool:
    """Return whether a folder is an export and no run that something was trained in."""
    there = Run(folder)
    ours = {there.recipe_file, there.subwords_file, there.model_folder}
    return ours <= set(folder.iterdir()) <= ours | beside(folder)


def beside(folder: Path) -> set[Path]:
    """Return the files allowed beside an exported model: the record of its data, and what earlier versions left."""
    there = Run(folder)
    return {there.data_file, there.lock_path, folder / "decoding.json"}


def read(folder: Path) -> SearchModel:
    """The model as translation reads it, on the CPU."""
    return Run(folder).load_model(torch.device("cpu"))[0]


# What is added to the words at each position, as the table of a fixed length that other engines want.


# Their tables end somewhere; ours go on. As many rows as nmt-translate reads subwords, and as many again.
N_POSITION = 2048


def position_table(place: nn.Module) -> Tensor:
    """(N_POSITION or more, D), for positions that are added and not turned by."""
    if isinstance(place, PositionalEncoding):
        zero = torch.zeros(1, N_POSITION, place.pos_table.size(-1), device=place.pos_table.device)
        rows: Tensor = place(zero)
        return rows[0]
    assert isinstance(place, LearnedPositions)
    table = place.pos_emb.weight
    return torch.cat([table, table[-1:].expand(max(0, N_POSITION - len(table)), -1)])
