"""The first weights of a run: chance, what the training pairs tell, or what another run has learnt. Beginning with
another run's weights is not going on with it: nothing but weights is taken, and the new run has its own data,
optimizer, update numbers and folder. Resuming is `Trainer.restore`."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, normalize

from nmt.data.corpus import Corpus, Ids, Prepared
from nmt.data.subwords import N_SPECIAL, Codec, Subwords
from nmt.errors import RunError
from nmt.models.base import TranslationModel
from nmt.progress import Bar
from nmt.recipe.model_options import ModelConfig
from nmt.recipe.options import Recipe
from nmt.recipe.reader import differences
from nmt.run import Run
from nmt.training.log import Record
from nmt.training.optim import names_of

MAX_PAIRS = 200_000  # more of them change the neighbours little, and take memory and time
_N_POWER, _N_EXTRA = 4, 32  # iterations, and dimensions beyond those wanted: both make the vectors more exact
_NOISE = 0.1  # share of the variance: what tells apart subwords that occur in exactly the same pairs


def cooccurrence_embeddings(
    corpus: Corpus, n_vocab: int, width: int, *, trg_offset: int, seed: int, quiet: bool
) -> Tensor:
    """(n_vocab, width) embeddings, of variance 1 / width as a normal initialisation would have. trg_offset: what is
    added to target ids, 0 where both sides share their ids and n_src_vocab where they do not; n_vocab counts all rows.
    A subword that occurs nowhere gets noise. At most MAX_PAIRS pairs are looked at, evenly spread over the corpus.
    Unless quiet, stderr has a progress bar."""
    n_pair = min(corpus.n_pair, MAX_PAIRS)
    src, trg = corpus.pairs(np.arange(n_pair) * corpus.n_pair // n_pair)
    every_id = np.concatenate([*src, *(row + trg_offset for row in trg)])
    of_pair = np.concatenate([np.repeat(np.arange(n_pair), list(map(len, side))) for side in (src, trg)])
    n_id = int(every_id.max(initial=0)) + 1
    key = np.unique(of_pair * n_id + every_id)  # a subword in a pair counts once
    ids, pairs = key % n_id, key // n_id
    # The sparse matrix A (subwords x pairs) of 1 / sqrt(pairs of the subword · subwords of the pair).
    per_id, per_pair = np.bincount(ids, minlength=n_vocab), np.bincount(pairs)
    weight = (per_id[ids] * per_pair[pairs].astype(np.float64)) ** -0.5
    by_id = np.argsort(ids, kind="stable")
    times = _product(pairs[by_id], per_id, weight[by_id])  # A x: (pairs, K) -> (subwords, K)
    transposed_times = _product(ids, per_pair, weight)  # AT x: (subwords, K) -> (pairs, K)
    # Its first left singular vectors, or as many as it has, each times the root of its singular value.
    generator = torch.Generator().manual_seed(seed % 2**63)
    n_found = min(width + 1 + _N_EXTRA, n_vocab, len(per_pair))
    y = times(torch.randn(len(per_pair), n_found, generator=generator))
    for _ in Bar(range(_N_POWER), desc="first embeddings", disable=quiet, leave=False):
        y = times(transposed_times(torch.linalg.qr(y).Q))
    vectors, squares, _ = torch.linalg.svd(y, full_matrices=False)
    vectors = (vectors[:, : width + 1] * squares[: width + 1] ** 0.25)[:, 1:]  # the first tells only how frequent
    known = torch.zeros(n_vocab, width)
    known[:, : vectors.size(1)] = normalize(vectors, dim=1)
    noise = torch.randn(n_vocab, width, generator=generator) * width**-0.5
    seen = known.any(dim=1, keepdim=True)
    return torch.where(seen, (1 - _NOISE) ** 0.5 * known + _NOISE**0.5 * noise, noise)


def _product(members: Ids, sizes: Ids, weight: NDArray[np.floating]) -> Callable[[Tensor], Tensor]:
    """Return the product with a sparse matrix, whose rows have so many of these members, each with a weight."""
    starts = torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)[:-1]]))
    bags, weights = torch.from_numpy(members), torch.from_numpy(weight).float()
    return lambda x: embedding_bag(bags, x, starts, mode="sum", per_sample_weights=weights)


OTHERWISE = "with these options the same weights may compute something else here"
# Options of the model that say how it learns, or that the names and shapes of its parameters show.
_NO_MATTER = {
    *("preset", "dropout", "emb_dropout", "attn_dropout", "act_dropout", "variational_dropout"),
    *("emb_init", "forget_bias", "d_model", "d_emb", "d_inner", "n_enc_layer", "n_dec_layer", "n_rnn_layer"),
    *("n_position", "attn_bias", "ffn_bias", "enc_conv", "lexical_attn", "prj_transform"),
}


@dataclass(frozen=True)
class Fate:
    """Fate of a parameter. kind: loaded; grown: some rows are new; skipped; or unused: this model has none."""

    name: str
    kind: str
    n_number: int
    why: str = ""


def first_weights(model: TranslationModel, data: Prepared, recipe: Recipe, record: Record) -> None:
    """Replace what chance gave by what is known better, and say so."""
    if recipe.model.emb_init == "cooccurrence":
        record.say(start_embeddings(model, data, recipe.seed, quiet=record.quiet))
    if recipe.train.init_from:
        folder, name, fates, others = take_origin(model, data, recipe)
        record.say(f"first weights from {folder}, {name}:")
        loaded = [fate.n_number for fate in fates if fate.kind == "loaded"]
        record.say(f"  loaded   {len(loaded)} parameters, {sum(loaded):,} numbers")
        for kind in ("grown", "skipped", "unused"):
            for fate in fates:
                if fate.kind == kind:
                    record.say(f"  {kind:8} {fate.name}: {fate.why}")
        if others:
            record.say("\n".join([f"  warning: {OTHERWISE}:", *(f"    {text}" for text in options_told(others))]))
        by_kind = {kind: {f.name: f.why for f in fates if f.kind == kind} for kind in ("grown", "skipped")}
        plain = {kind: [f.name for f in fates if f.kind == kind] for kind in ("loaded", "unused")}
        changed = {"options": others} if others else {}
        record.write("init", 0, run=str(folder), checkpoint=name, **by_kind, **plain, **changed)


def take_origin(
    model: TranslationModel, data: Prepared, recipe: Recipe
) -> tuple[Path, str, list[Fate], dict[str, tuple[Any, Any]]]:
    """Copy into a model what fits of the run that train.init_from names. Raises RunError if nothing does. Returns the
    run folder, the name of the checkpoint, the fates of all parameters, and what `other_computation` finds."""
    run, name = find_origin(recipe)
    other, name = run.load_model(torch.device("cpu"), name)
    fates = take_over(model, data.subwords, other, run.subwords())
    if not any(fate.kind in ("loaded", "grown") for fate in fates):
        raise RunError(
            f"train.init_from: no parameter of {run.folder}, {name} fits this recipe's model: {fates[0].name}: "
            f"{fates[0].why}; and so on. Give this recipe that run's model options."
        )
    return run.folder, name, fates, other_computation(run.recipe().model, recipe.model)


def check_origin(recipe: Recipe, run: Run) -> None:
    """Raise RunError where train.init_from cannot be meant. What a run began with may be gone once it has begun."""
    if recipe.train.init_from and not run.begun:
        find_origin(recipe)


def find_origin(recipe: Recipe) -> tuple[Run, str | None]:
    """The run that train.init_from names, and the name of the checkpoint in it, None for the one that translates.
    Raises RunError when it names no run, or this one."""
    named = recipe.train.init_from
    for place in recipe.origin.places("train.init_from", named):
        if Run(place).exists:
            run, name = Run(place), None
        elif place.parent.name == "checkpoints" and Run(place.parent.parent).exists:
            run, name = Run(place.parent.parent), place.name
        elif place.is_dir() and Run(place.parent).exists:  # RUN/model
            run, name = Run(place.parent), place.name
        else:
            continue
        if run.folder.resolve() == recipe.run_folder.resolve():
            raise RunError(
                f"train.init_from: {named} is this run itself, which goes on from its own checkpoints anyway. To "
                "fine-tune it, give the new run another --name or --train.out."
            )
        return run, name
    raise RunError(
        f"train.init_from: {named} is no run: {recipe.origin.tried('train.init_from', named)}. Name a folder that "
        "nmt-train wrote, runs/NAME, or a checkpoint in it, runs/NAME/checkpoints/update-00012000."
    )


def take_over(
    model: TranslationModel, subwords: Subwords, other: TranslationModel, other_subwords: Subwords
) -> list[Fate]:
    """Copy into a model what fits of another. What does not keeps its value. A parameter that is named and shaped alike
    is copied. A row that belongs to a subword goes to the row of the same subword, wherever that is in the other
    vocabulary; that of a new one is the mean of the subwords that stood for it there. A matrix that is shared here and
    not there takes each row from the first of the other's matrices that has it."""
    codec_of, other_codec_of = _vocabularies(model, subwords), _vocabularies(other, other_subwords)
    theirs = dict(other.named_parameters(remove_duplicate=False))
    fates = []
    for param, names in names_of(model).items():
        candidates = list(dict.fromkeys(theirs[name] for name in names if name in theirs))
        fitting = [their for their in candidates if their.shape[1:] == param.shape[1:]]
        if not candidates:
            fates.append(Fate(names[0], "skipped", param.numel(), "not in that run"))
        elif not fitting or (param not in codec_of and candidates[0].shape != param.shape):
            fates.append(Fate(names[0], "skipped", param.numel(), f"{_by(candidates[0])} there, {_by(param)} here"))
        elif param not in codec_of:
            with torch.no_grad():
                param.copy_(fitting[0])
            fates.append(Fate(names[0], "loaded", param.numel()))
        else:
            mine = codec_of[param]
            n_row = _copy_rows(param, mine, [(their, other_codec_of[their]) for their in fitting])
            why = f"{n_row:,} of {mine.size:,} subwords, {mine.size - n_row:,} begin as the mean of their parts there"
            kind, why = ("loaded", "") if n_row == mine.size else ("grown", why)
            fates.append(Fate(names[0], kind, param.numel(), why))
    known = {name for names in names_of(model).values() for name in names}
    left = (names[0] for names in names_of(other).values() if not known & set(names))
    return fates + [Fate(name, "unused", theirs[name].numel(), "only in that run") for name in left]


def other_computation(there: ModelConfig, here: ModelConfig) -> dict[str, tuple[Any, Any]]:
    """Options of the model by which equal weights may mean something else here: {name: (there, here)}."""
    changed = differences(there.model_dump(), here.model_dump())
    # A matrix that was shared there and is not here is the same in all its places.
    return {
        name: (old, new)
        for name, (old, new) in changed.items()
        if name not in _NO_MATTER and not (name.endswith("_sharing") and old and not new)
    }


def start_embeddings(model: TranslationModel, data: Prepared, seed: int, *, quiet: bool = True) -> str:
    """Fill in first embeddings that know which subwords occur in the same training pairs. Returns a line about it."""
    begin = time.perf_counter()
    source, target = model.embeddings
    n_src, n_trg = source.num_embeddings, target.num_embeddings
    n_row, trg_offset = (n_trg, 0) if source.weight is target.weight else (n_src + n_trg, n_src)
    rows = cooccurrence_embeddings(
        data.train, n_row, target.embedding_dim, trg_offset=trg_offset, seed=seed, quiet=quiet
    )
    with torch.no_grad():
        source.weight.copy_(rows[:n_src])
        target.weight.copy_(rows[-n_trg:])
    n_pair = min(data.train.n_pair, MAX_PAIRS)
    return f"first embeddings from co-occurrence in {n_pair:,} pairs: {time.perf_counter() - begin:.1f} s"


def _vocabularies(model: TranslationModel, subwords: Subwords) -> dict[Tensor, Codec]:
    """The parameters whose rows belong to subwords, and whose subwords those are."""
    source, target = model.embeddings
    return {model.output_weight: subwords.trg, target.weight: subwords.trg, source.weight: subwords.src}


@torch.no_grad()
def _copy_rows(param: nn.Parameter, codec: Codec, sources: list[tuple[Tensor, Codec]]) -> int:
    """Fill rows from the first source that has their subword, new ones with a mean of rows of the first source. Returns
    how many of `codec.size` were found."""
    if _pieces(codec) == _pieces(sources[0][1]):
        param.copy_(sources[0][0])  # with the rows that pad the vocabulary
        return codec.size
    is_found = np.zeros(codec.size, dtype=bool)
    for their, their_codec in sources:
        row_of = {piece: row for row, piece in enumerate(_pieces(their_codec), N_SPECIAL)}
        row = np.array([*range(N_SPECIAL), *(row_of.get(piece, -1) for piece in _pieces(codec))])
        new = np.flatnonzero(~is_found & (row >= 0))
        is_found[new] = True
        param[torch.from_numpy(new)] = their[torch.from_numpy(row[new])].to(param.device)
    their, their_codec = sources[0]
    for new_row in np.flatnonzero(~is_found).tolist():
        if new_row < codec.n_text:
            parts = their_codec.cut(codec.raw([new_row])[0])  # all bytes are pieces, so there are some
        else:  # another tag, which is like the ones that were there; the first of all begins by chance
            parts = their_codec.tag_ids(their_codec.tags)
        if parts:
            param[new_row] = their[parts].mean(0).to(param.device)
    return int(is_found.sum())


def _pieces(codec: Codec) -> list[bytes | str]:
    """Return what has a row after the control symbols: the bytes of pieces, and tags."""
    return [*codec.raw(range(N_SPECIAL, codec.n_text)), *codec.tags]


def _by(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape))


def options_told(others: dict[str, tuple[Any, Any]]) -> list[str]:
    """Format what `other_computation` finds, for people."""
    return [f"model.{name}: {there} there, {here} here" for name, (there, here) in others.items()]
