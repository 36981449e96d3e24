"""`nmt.prepare` and `nmt.train`: what nmt-preprocess and nmt-train do, for programs in Python.

No process is started or ended for it, and what training sets for the process is put back when it is over.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from nmt.cli.parser import is_corpus
from nmt.cli.preprocess import own_recipe
from nmt.errors import RecipeError, convert_errors, shown
from nmt.recipe.options import Recipe
from nmt.recipe.reader import overrides_of, read_recipe

Given = str | Path | Mapping[str, Any]


@contextmanager
def _in_words_of_python() -> Iterator[None]:
    """Have no command line in what is said of options."""
    try:
        yield
    except RecipeError as error:
        raise RecipeError(re.sub(r"(?m)^(the )?command line(:1)?: ", "", str(error))) from None


@convert_errors()
@_in_words_of_python()
def prepare(
    recipe: Given | Sequence[str | Path], *, langs: Sequence[str] | None = None, overwrite: bool = False, **options: Any
) -> Path:
    """Prepare the data of a recipe, as nmt-preprocess does. Returns their folder, which `nmt.train` takes.

    recipe: a YAML file, or a dict of its sections; or a corpus, one file with both sides or a pair of files, whose
    languages are langs. overwrite: replace data that were prepared otherwise before. options: those of the recipe, a
    dict for each section: data={"out": "prepared/mine"}.
    Raises AlarmError where the corpora look seriously wrong, RecipeError for options, DataError for corpora.
    """
    from nmt.cli.translated import translate_corpora
    from nmt.data.prepare import prepare as prepare_corpora

    files = recipe if isinstance(recipe, (list, tuple)) else [recipe]
    if langs is not None or files is recipe or (isinstance(recipe, str | Path) and is_corpus(str(recipe))):
        if not isinstance(langs, (list, tuple)) or len(langs) != 2 or not all(isinstance(one, str) for one in langs):
            raise RecipeError(f'langs: expected the languages of the two sides, as ("en", "de"), found {shown(langs)}.')
        if not files or not all(isinstance(one, str | Path) for one in files):
            raise RecipeError(f"recipe: with langs a corpus is expected, one file or a pair, found {shown(recipe)}.")
        found = own_recipe([[str(one) for one in files]], langs, overrides_of(options))
    else:
        found = _read(recipe, options)
    translations = translate_corpora(found)
    prepare_corpora(found, found.data_folder, overwrite=overwrite, translations=translations)
    return found.data_folder


@convert_errors()
@_in_words_of_python()
def train(recipe: Given, **options: Any) -> Path:
    """Train, or go on, as nmt-train does. Returns the run folder, which `nmt.load` takes.

    recipe: a YAML file, a folder of prepared data, a run to go on with, or a dict of sections. options: those of the
    recipe, a dict for each section: train={"updates": 1000}, optim={"lr": 1e-3}.
    Ctrl-C saves, and is a KeyboardInterrupt then; a second one does not wait. Raises RecipeError for options, DataError
    where the data are not prepared, RunError for a run folder, MachineError where training cannot go on.
    """
    from nmt.cli.begin import Stop
    from nmt.cli.train import STOPPING, prepare_libraries
    from nmt.training.launch import launch

    found = _read(recipe, options)
    prepare_libraries()
    with _as_it_was(), Stop(("SIGINT",), STOPPING) as stop, stop.finishing():
        outcome = launch(found, stop)
    if stop() or outcome == "stopped":
        raise KeyboardInterrupt
    return found.run_folder


def _read(recipe: Any, options: Mapping[str, Any]) -> Recipe:
    if not isinstance(recipe, str | Path | Mapping):
        raise RecipeError(
            f"recipe: expected the path of a recipe or of a folder, or a dict of sections, found {shown(recipe)} of "
            f"type {type(recipe).__name__}."
        )
    if isinstance(recipe, Mapping):
        return read_recipe(None, [*overrides_of(recipe), *overrides_of(options)])
    return read_recipe(recipe, overrides_of(options))


@contextmanager
def _as_it_was() -> Iterator[None]:
    """Put back what training sets for all of the process: threads, seeds, and how torch multiplies."""
    import torch

    from nmt import ops

    backends: Any = torch.backends  # whose type hints do not tell all
    on_gpu, products, attention = torch.cuda.is_available(), backends.mkldnn.matmul, backends.cuda
    with ExitStack() as kept:
        kept.enter_context(torch.random.fork_rng(range(torch.cuda.device_count()) if on_gpu else ()))
        kept.enter_context(ops.kernels_kept())
        if on_gpu:
            kept.callback(attention.enable_cudnn_sdp, attention.cudnn_sdp_enabled())
            kept.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        kept.callback(setattr, products, "fp32_precision", products.fp32_precision)
        kept.callback(torch.set_num_threads, torch.get_num_threads())
        yield
