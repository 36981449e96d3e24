"""`nmt.prepare` and `nmt.train`: nmt-preprocess and nmt-train for Python programs.

They run in the calling process, and restore its global torch settings after training.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from nmt.cli.begin import Stop, talk
from nmt.cli.parser import is_corpus
from nmt.cli.preprocess import recipe_of_files
from nmt.cli.train import STOPPING, prepare_libraries
from nmt.errors import RecipeError, convert_errors, described, shown
from nmt.files import RECIPE
from nmt.recipe.options import Recipe
from nmt.recipe.reader import differences, overrides_of, read_recipe

RecipeSource = str | Path | Mapping[str, Any]


@convert_errors()
def prepare(
    recipe: RecipeSource | Sequence[str | Path],
    *,
    langs: Sequence[str] | None = None,
    overwrite: bool = False,
    **options: Any,
) -> Path:
    """Prepare the data of a recipe, like nmt-preprocess. Returns the prepared folder, for `nmt.train`.

    recipe: a YAML file, or a dict of its sections; or a corpus, one file with both sides or a pair of files, whose
    languages are langs. overwrite: replace data that were prepared with other options. options: recipe options, a
    dict for each section: data={"out": "prepared/mine"}.
    Raises AlarmError if the corpora look seriously wrong, RecipeError for options, DataError for corpora.
    """
    from nmt.cli.translated import translate_corpora
    from nmt.data.prepare import prepare as prepare_corpora

    files = recipe if isinstance(recipe, (list, tuple)) else [recipe]
    if langs is not None or files is recipe or (isinstance(recipe, str | Path) and is_corpus(str(recipe))):
        if not isinstance(langs, (list, tuple)) or len(langs) != 2 or not all(isinstance(lang, str) for lang in langs):
            raise RecipeError(f'langs: expected the languages of the two sides, as ("en", "de"), found {shown(langs)}.')
        if not files or not all(isinstance(file, str | Path) for file in files):
            raise RecipeError(f"recipe: with langs a corpus is expected, one file or a pair, found {shown(recipe)}.")
        resolved = recipe_of_files([list(map(str, files))], langs, overrides=overrides_of(options), given_by="")
    else:
        resolved = _read(recipe, options)
    folder = resolved.data_folder
    prepare_corpora(resolved, folder, overwrite=overwrite, translations=translate_corpora(resolved))
    changed = differences(read_recipe(folder / RECIPE).model_dump(mode="json"), resolved.model_dump(mode="json"))
    if names := [name for name in changed if not name.startswith(("data.", "name"))]:
        advice = "pass these options to nmt.train, or overwrite the data"
        talk(f"note: {folder / RECIPE} has other values of {', '.join(names)}: {advice}")
    return folder


@convert_errors()
def train(recipe: RecipeSource, **options: Any) -> Path:
    """Train, or resume a run, like nmt-train. Returns the run folder, for `nmt.load`.

    recipe: a YAML file, a folder of prepared data, a run to resume, or a dict of sections. options: recipe options, a
    dict for each section: train={"updates": 1000}, optim={"lr": 1e-3}.
    Ctrl-C saves, then raises KeyboardInterrupt; a second Ctrl-C raises it at once. Raises RecipeError for options,
    DataError for unprepared data, RunError for a run folder, MachineError if training cannot continue.
    """
    from nmt.training.launch import launch

    resolved = _read(recipe, options)
    prepare_libraries(resolved)
    with _torch_settings_restored(), Stop(("SIGINT",), STOPPING) as stop, stop.finishing():
        outcome = launch(resolved, stop)
    if outcome == "stopped" or stop():
        raise KeyboardInterrupt
    return resolved.run_folder


def _read(recipe: Any, options: Mapping[str, Any]) -> Recipe:
    if not isinstance(recipe, str | Path | Mapping):
        raise RecipeError(f"recipe: expected the path of a recipe or folder, or a dict, found {described(recipe)}.")
    if isinstance(recipe, Mapping):
        return read_recipe(None, [*overrides_of(recipe), *overrides_of(options)], given_by="")
    return read_recipe(recipe, overrides_of(options), given_by="")


@contextmanager
def _torch_settings_restored() -> Iterator[None]:
    """Context manager: restore the settings that training changes in the process: threads, seeds and precision."""
    import torch

    from nmt import ops

    backends: Any = torch.backends  # its type hints are incomplete
    has_gpu, matmul, attention = torch.cuda.is_available(), backends.mkldnn.matmul, backends.cuda
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(range(torch.cuda.device_count()) if has_gpu else ()))
        stack.enter_context(ops.kernels_kept())
        if has_gpu:
            stack.callback(attention.enable_cudnn_sdp, attention.cudnn_sdp_enabled())
            stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        stack.callback(setattr, matmul, "fp32_precision", matmul.fp32_precision)
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        yield
