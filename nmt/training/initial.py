"""Initial weights of a run: random, from co-occurrence in the training pairs, or from another run, of which only the
weights are taken: data, optimizer, update numbers and folder are new. Resuming is `Trainer.restore`."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, normalize

from nmt.data.corpus import Ids, Prepared
from nmt.data.subwords import N_SPECIAL, Codec, Subwords
from nmt.errors import RunError
from nmt.files import is_run
from nmt.models.base import TranslationModel
from nmt.recipe.options import Recipe
from nmt.recipe.reader import differences
from nmt.run import Run
from nmt.training.log import Record
from nmt.training.optim import names_of

MAX_PAIRS = 200_000  # more pairs hardly change the neighbours, and take memory and time
_N_POWER, _N_EXTRA = 4, 32  # power iterations and extra dimensions: both make the vectors more exact
_NOISE = 0.1  # share of the variance; it distinguishes subwords that occur in exactly the same pairs


def start_embeddings(model: TranslationModel, data: Prepared, seed: int) -> None:
    """Set initial embeddings from the co-occurrence of subwords in at most MAX_PAIRS training pairs, evenly spread.

    Their variance is 1 / width, as of a normal initialisation. A subword that does not occur gets noise.
    """
    source, target = model.embeddings
    n_src, n_trg, width = source.num_embeddings, target.num_embeddings, target.embedding_dim
    # Rows of both sides, and the first row of the target.
    n_vocab, trg_offset = (n_trg, 0) if source.weight is target.weight else (n_src + n_trg, n_src)
    n_pair = min(data.train.n_pair, MAX_PAIRS)
    src, trg = data.train.picked(np.arange(n_pair) * data.train.n_pair // n_pair)
    all_ids = np.concatenate([src.values.astype(np.int64), trg.values.astype(np.int64) + trg_offset])
    pair_of_id = np.concatenate([np.repeat(np.arange(n_pair), side.lengths) for side in (src, trg)])
    n_id = int(all_ids.max(initial=0)) + 1
    key = np.unique(pair_of_id * n_id + all_ids)  # a subword counts once per pair
    ids, pairs = key % n_id, key // n_id
    # The sparse matrix A (subwords x pairs) of 1 / sqrt(pairs of the subword · subwords of the pair).
    per_id, per_pair = np.bincount(ids, minlength=n_vocab), np.bincount(pairs)
    weight = (per_id[ids] * per_pair[pairs].astype(np.float64)) ** -0.5
    by_id = np.argsort(ids, kind="stable")
    times = _product(pairs[by_id], per_id, weight[by_id])  # A x: (pairs, K) -> (subwords, K)
    transposed_times = _product(ids, per_pair, weight)  # AT x: (subwords, K) -> (pairs, K)
    # Its first left singular vectors, or as many as it has, each times the square root of its singular value.
    generator = torch.Generator().manual_seed(seed % 2**63)
    n_vector = min(width + 1 + _N_EXTRA, n_vocab, len(per_pair))
    y = times(torch.randn(len(per_pair), n_vector, generator=generator))
    for _ in range(_N_POWER):
        y = times(transposed_times(torch.linalg.qr(y).Q))
    vectors, squares, _ = torch.linalg.svd(y, full_matrices=False)
    vectors = (vectors[:, : width + 1] * squares[: width + 1] ** 0.25)[:, 1:]  # the first one encodes only frequency
    known = torch.zeros(n_vocab, width)
    known[:, : vectors.size(1)] = normalize(vectors, dim=1)
    noise = torch.randn(n_vocab, width, generator=generator) * width**-0.5
    seen = known.any(dim=1, keepdim=True)
    rows = torch.where(seen, (1 - _NOISE) ** 0.5 * known + _NOISE**0.5 * noise, noise)
    with torch.no_grad():
        source.weight.copy_(rows[:n_src])
        target.weight.copy_(rows[-n_trg:])


def _product(members: Ids, sizes: Ids, weight: NDArray[np.floating]) -> Callable[[Tensor], Tensor]:
    """Return a function that multiplies by a sparse matrix. members: column indices of all rows, end to end. sizes:
    number of members of each row. weight: value of each member."""
    starts = torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)[:-1]]))
    bags, weights = torch.from_numpy(members), torch.from_numpy(weight).float()
    return lambda x: embedding_bag(bags, x, starts, mode="sum", per_sample_weights=weights)


# Model options that affect only training, or that show in the names and shapes of the parameters.
_IRRELEVANT = {
    *("preset", "dropout", "emb_dropout", "attn_dropout", "act_dropout", "variational_dropout"),
    *("emb_init", "forget_bias", "d_model", "d_emb", "d_inner", "n_enc_layer", "n_dec_layer", "n_rnn_layer"),
    *("n_position", "attn_bias", "ffn_bias", "enc_conv", "lexical_attn", "prj_transform"),
}


def first_weights(model: TranslationModel, data: Prepared, recipe: Recipe, record: Record) -> None:
    """Replace random initial weights as the recipe says, and report it."""
    if recipe.model.emb_init == "cooccurrence":
        record.say("computing first embeddings from co-occurrence ...")
        start_embeddings(model, data, recipe.seed)
    if recipe.train.init_from:
        fates = copy_from_origin(model, data, recipe)
        n_number = sum(model.get_parameter(name).numel() for name in fates["loaded"])
        record.say(f"first weights from {fates['run']}, {fates['checkpoint']}:")
        record.say(f"  loaded   {len(fates['loaded'])} parameters, {n_number:,} numbers")
        for kind in ("grown", "skipped"):
            for name, why in fates[kind].items():
                record.say(f"  {kind:8} {name}: {why}")
        for name in fates["unused"]:
            record.say(f"  unused   {name}: only in that run")
        if "options" in fates:
            record.say(f"  warning: {options_warning(fates['options'])}")
        record.write("init", 0, **fates)


def copy_from_origin(model: TranslationModel, data: Prepared, recipe: Recipe) -> dict[str, Any]:
    """Copy the weights that fit from the run that train.init_from names. Raises RunError if none fits.

    Returns the fields of the line `init` of the log: run, checkpoint, the fates of the parameters (see `copy_weights`),
    and options, {name: (there, here)}: those with which the same weights may compute something else, if there are any.
    """
    run, name = find_origin(recipe)
    other, name = run.load_model(torch.device("cpu"), name)
    fates = copy_weights(model, data.subwords, other, run.subwords())
    if not fates["loaded"] and not fates["grown"]:
        param, why = next(iter(fates["skipped"].items()))
        raise RunError(
            f"train.init_from: no parameter of {run.folder}, {name} fits this recipe's model: {param}: {why}; and so "
            "on. Use the model options of that run in this recipe."
        )
    there, here = (config.model_dump(exclude=_IRRELEVANT) for config in (run.recipe().model, recipe.model))
    # A matrix that is shared only there gives equal copies here, which compute the same.
    differing = {
        option: (old, new)
        for option, (old, new) in differences(there, here).items()
        if not (option.endswith("_sharing") and old and not new)
    }
    options = {"options": differing} if differing else {}
    return {"run": str(run.folder), "checkpoint": name, **fates, **options}


def check_origin(recipe: Recipe, run: Run) -> None:
    """Raise RunError if train.init_from names no run or no checkpoint of it. A resumed run no longer needs it."""
    if recipe.train.init_from and not run.has_weights:
        origin, name = find_origin(recipe)
        origin.weights_folder(name)


def find_origin(recipe: Recipe) -> tuple[Run, str | None]:
    """Return run and checkpoint of train.init_from; None: the final model. Raises RunError if it names no run."""
    named = recipe.train.init_from
    for path in recipe.origin.places("train.init_from", named):
        if is_run(path):
            return Run(path), None
        if path.parent.name == "checkpoints" and is_run(path.parent.parent):
            return Run(path.parent.parent), path.name
    raise RunError(
        f"train.init_from: {named} is not a run: {recipe.origin.tried('train.init_from', named)}. Name a folder that "
        "nmt-train wrote, runs/NAME, or a checkpoint in it, runs/NAME/checkpoints/update-00012000."
    )


@torch.no_grad()
def copy_weights(
    model: TranslationModel, subwords: Subwords, other: TranslationModel, other_subwords: Subwords
) -> dict[str, Any]:
    """Copy weights of another model where they fit; the rest keeps its values. A parameter with the same name and shape
    is copied. A row that belongs to a subword is copied from the row of the same subword in the other vocabulary. The
    row of a new subword is the mean of the rows of the subwords that the other vocabulary cuts it into. A matrix that
    is shared only in this model takes each row from the first of the other model's matrices that has the subword.

    Returns the fates of the parameters: the names of those that were loaded, and of those that are unused, only in the
    other model; and reasons by name for those that were grown, with some new rows, and for those that were skipped.
    """
    codec_of, other_codec_of = _vocabularies(model, subwords), _vocabularies(other, other_subwords)
    own_params, other_params = (dict(m.named_parameters(remove_duplicate=False)) for m in (model, other))
    loaded, grown, skipped = list[str](), dict[str, str](), dict[str, str]()
    for param, names in names_of(model).items():
        codec = codec_of.get(param)
        sources = list(dict.fromkeys(other_params[name] for name in names if name in other_params))
        fitting = [source for source in sources if source.shape[1:] == param.shape[1:]]
        if not sources:
            skipped[names[0]] = "not in that run"
        elif not fitting or (codec is None and sources[0].shape != param.shape):
            there, here = (" x ".join(map(str, matrix.shape)) for matrix in (sources[0], param))
            skipped[names[0]] = f"{there} there, {here} here"
        elif codec is None:
            param.copy_(fitting[0])
            loaded.append(names[0])
        elif n_new := _copy_rows(param, codec, [(source, other_codec_of[source]) for source in fitting]):
            n_old = f"{codec.size - n_new:,} of {codec.size:,} subwords"
            grown[names[0]] = f"{n_old}, {n_new:,} start as the mean of their parts there"
        else:
            loaded.append(names[0])
    unused = [names[0] for names in names_of(other).values() if own_params.keys().isdisjoint(names)]
    return {"grown": grown, "skipped": skipped, "loaded": loaded, "unused": unused}


def _vocabularies(model: TranslationModel, subwords: Subwords) -> dict[Tensor, Codec]:
    """The parameters whose rows belong to subwords, each with the codec of its side."""
    source, target = model.embeddings
    return {model.output_weight: subwords.trg, target.weight: subwords.trg, source.weight: subwords.src}


def _copy_rows(param: nn.Parameter, codec: Codec, sources: list[tuple[Tensor, Codec]]) -> int:
    """Fill each row from the first source that has its subword, and new rows with a mean of rows of the first source.

    Returns the number of new rows.
    """
    if _pieces(codec) == _pieces(sources[0][1]):
        param.copy_(sources[0][0])  # includes the rows that pad the vocabulary
        return 0
    is_found = np.zeros(codec.size, dtype=bool)
    for source, source_codec in sources:
        row_of = {piece: row for row, piece in enumerate(_pieces(source_codec), N_SPECIAL)}
        source_row = np.array([*range(N_SPECIAL), *(row_of.get(piece, -1) for piece in _pieces(codec))])
        rows = np.flatnonzero(~is_found & (source_row >= 0))
        is_found[rows] = True
        param[torch.from_numpy(rows)] = source[torch.from_numpy(source_row[rows])].to(param.device)
    source, source_codec = sources[0]
    new_rows = np.flatnonzero(~is_found).tolist()
    for new_row in new_rows:
        if new_row < codec.n_text:
            source_ids = source_codec.cut(codec.raw([new_row])[0].decode())  # not empty, since all bytes are pieces
        else:  # a new tag starts as the mean of the other tags; without any it keeps its random value
            source_ids = source_codec.tag_ids(source_codec.tags)
        if source_ids:
            param[new_row] = source[source_ids].mean(0).to(param.device)
    return len(new_rows)


def _pieces(codec: Codec) -> list[bytes | str]:
    """Content of the rows after the control symbols: pieces as bytes, then tags."""
    return [*codec.raw(range(N_SPECIAL, codec.n_text)), *codec.tags]


def options_warning(differing: dict[str, tuple[Any, Any]]) -> str:
    """Return a warning of the differing options that `copy_from_origin` returns."""
    listed = "; ".join(f"model.{name}: {there} there, {here} here" for name, (there, here) in differing.items())
    return f"these model options differ, so the copied weights may compute something else: {listed}"
