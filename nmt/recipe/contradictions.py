"""Contradictions: options that are valid by themselves but not in combination.

A message begins with the dotted name of the option to change, and gives the dotted names of the other options that take
part. `complaints.py` finds the line of a message by the first of these names that the recipe has.
"""

import math
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING

from nmt.recipe.data_options import (
    MIN_VOCAB_SIZE,
    PER_KIND,
    SENTENCEPIECE_ENDINGS,
    complaint_about_patterns,
    kind_of,
    patterns_of,
)
from nmt.recipe.decode_options import SAMPLING_OPTIONS
from nmt.recipe.training_options import WITHOUT_END

if TYPE_CHECKING:
    from nmt.recipe.data_options import CorpusFiles
    from nmt.recipe.options import Recipe

# Format of a file by the ending of its name, without .gz and the like; any other ending means text.
ENDINGS = {f".{kind}": kind for kind in ("tsv", "json", "jsonl", "parquet", "arrow", "csv", "tmx")} | {
    ".ndjson": "jsonl"
}
# Endings of formats that are not read, with the way to convert them.
_SPREADSHEET = "is a spreadsheet. Save it as CSV in UTF-8, and name that"
_XLIFF = "is XLIFF. Make CSV of it with the Translate Toolkit: xliff2po IN OUT.po; po2csv OUT.po OUT.csv"
NOT_READ = dict.fromkeys((".xlsx", ".xls", ".ods"), _SPREADSHEET) | dict.fromkeys((".xlf", ".xliff"), _XLIFF)
# Options that have no effect while another one is off.
_NEEDS = {
    "subwords.extend": "subwords.vocab_from",
    "model.prj_transform": "model.trg_emb_prj_weight_sharing",
    "regularize.r_drop_from": "regularize.r_drop",
    "regularize.simcut_from": "regularize.simcut",
    "decode.align_head": "decode.align_layer",
    **{f"decode.{name}": "decode.samples" for name in SAMPLING_OPTIONS},
}
_COLUMNS = ("src_column", "trg_column")
# Options of a corpus that cannot stand beside the one that names its text, and those that must.
_EXCLUDED = {
    "translated_by": ("file", "dataset", "subset", "split", *_COLUMNS, "header", "unescape", "scores", "score_column"),
    "file": ("dataset", "src", "trg", "subset", "split"),
    "dataset": ("src", "trg", "format"),
    "src and trg": ("subset", "split"),
}
_EXPECTED = {
    **dict.fromkeys(("src", "trg"), "a file; or {file: …} or {dataset: …} with both sides"),
    **dict.fromkeys(_COLUMNS, "the name of a column or key, or in TSV its number"),
    "split": "the split of the dataset: train, validation, …",
}
_NEEDED: dict[str, tuple[str, ...]] = {"src and trg": ("src", "trg"), "dataset": ("split", *_COLUMNS)}


def find_contradictions(recipe: "Recipe") -> Iterator[str]:
    """Yield a message for each contradiction, as "dotted.name: what is wrong and what to do"."""
    for check in (_of_data, _of_subwords, _of_model, _of_batch, _of_training, _of_translation):
        yield from check(recipe)
    for name, needed in _NEEDS.items():
        section, _, option = name.partition(".")
        default = type(getattr(recipe, section)).model_fields[option].default
        if attrgetter(name)(recipe) != default and not attrgetter(needed)(recipe):
            yield f"{name}: has no effect without {needed} (set that, or remove this)"


def names_of(files: str | list[str] | None) -> list[str]:
    """Return the file names of an option that takes one name or several."""
    return [files] if isinstance(files, str) else files or []


def _duplicates(names: Iterable[str]) -> str:
    """Return the names that occur more than once, separated by commas."""
    return ", ".join(name for name, n in Counter(names).items() if n > 1)


def _of_data(recipe: "Recipe") -> Iterator[str]:
    data = recipe.data
    # Files are named after the sets, and some file systems ignore case.
    if duplicates := _duplicates(files.name.lower() for files in data.valid):
        yield f"data.valid: several sets are called {duplicates} (give each a name of its own: name: …)"
    if data.valid_size and data.valid:
        yield "data.valid_size: data.valid names validation files (remove one of the two)"
    tagged = [corpus for corpus in data.train if corpus.trg_lang or (corpus.tags and not corpus.translated_by)]
    if data.valid_size and data.train and (tagged or all(corpus.translated_by for corpus in data.train)):
        yield "data.valid_size: corpora with translated_by, tags or languages give no pairs (name a set in data.valid)"
    corpora: dict[str, CorpusFiles] = {f"data.train.{n}": files for n, files in enumerate(data.train)}
    corpora |= {f"data.valid.{n}": files for n, files in enumerate(data.valid)}
    corpora |= {"data.test": data.test} if data.test else {}
    for prefix, options in [("data", data), *corpora.items()]:
        if 0 < (ratio := getattr(options, "max_ratio", None) or 0.0) < 1:
            yield f"{prefix}.max_ratio: {ratio:g} is below 1, but the ratio is that of the longer side (0: any ratio)"
    known_tags = data.known_tags
    for prefix, files in corpora.items():
        yield from _of_corpus(prefix, files)
        if unknown := [tag for tag in data.tags_of(files) if tag not in known_tags]:
            known = ", ".join(known_tags) or "none"
            yield f"{prefix}: the tag {unknown[0]} of trg_lang or tags is in no training corpus (there are {known})"


def _of_corpus(prefix: str, files: "CorpusFiles") -> Iterator[str]:
    """Check that a corpus names its text once, and that columns and scores are complete. prefix: its dotted name."""
    given = files.model_dump(exclude_defaults=True)
    text = next((name for name in ("translated_by", "file", "dataset") if name in given), "src and trg")
    if excluded := [name for name in _EXCLUDED[text] if name in given]:
        why = f"not with {text} (remove one of the two)" if text in given else "needs dataset (add it, or remove this)"
        yield f"{prefix}.{excluded[0]}: {why}"
        return
    columns = [name for name in _COLUMNS if name in given]
    # The columns of a file are found by their names if none is given.
    for name in _COLUMNS if text == "file" and columns else _NEEDED.get(text, ()):
        if name not in given:
            yield f"{prefix}.{name}: missing (expected {_EXPECTED[name]})"
    if text != "src and trg" and len(columns) == 2 and files.src_column == files.trg_column:
        yield f"{prefix}.trg_column: {files.trg_column} is also {prefix}.src_column (name two different columns)"
    if text == "translated_by" and ("src" in given) == ("trg" in given):
        yield f"{prefix}.translated_by: name one side as text: src for distillation, or trg for back-translation"
    for name in ("dataset", "file", "src", "trg", "scores", "translated_by"):
        if name in given and "" in (names_of(given[name]) or [""]):
            yield f"{prefix}.{name}: is empty (expected a {'run' if name == 'translated_by' else 'file'})"
    if files.header is False and (named := [given[name] for name in columns if isinstance(given[name], str)]):
        yield f"{prefix}.header: false, but column {named[0]!r} is chosen by name (give its number, from 1)"
    scores = [name for name in ("scores", "score_column") if name in given]
    thresholds = [name for name in ("min_score", "best_share") if name in given]
    for name in scores + thresholds if bool(scores) != bool(thresholds) else ():
        yield f"{prefix}.{name}: scores or score_column need min_score or best_share and vice versa (add one)"


def _of_subwords(recipe: "Recipe") -> Iterator[str]:
    subwords, protect = recipe.subwords, recipe.data.protect
    symbols, names, kind = subwords.symbols, subwords.vocab_names, subwords.kind
    for name, texts in (("subwords.symbols", symbols), ("data.protect", protect)):
        if duplicates := _duplicates(texts):
            yield f"{name}: {duplicates} occurs twice (name each once)"
    for symbol in symbols:
        if complaint := complaint_about_symbol(symbol, subwords.normalize):
            yield f"subwords.symbols: {symbol!r} {complaint}"
    if len(names) > (n_max := 1 if subwords.joint else 2):
        joint = str(subwords.joint).lower()
        yield f"subwords.vocab_from: {len(names)} models, but subwords.joint is {joint} (name {n_max} at most)"
    if kind != "sentencepiece" and names[0].endswith(SENTENCEPIECE_ENDINGS):
        yield f"subwords.kind: {kind}, but subwords.vocab_from is a model of SentencePiece (use sentencepiece)"
    if kind == "sentencepiece":
        if not subwords.vocab_from:
            yield "subwords.kind: sentencepiece needs a trained model (name its file with subwords.vocab_from)"
        for name, default in (("extend", 0), ("normalize", "nfc"), ("whitespace", "unified")):
            if getattr(subwords, name) != default:
                yield f"subwords.{name}: subwords.kind: sentencepiece has pieces and rules of its own (remove it)"
    if complaint := complaint_about_patterns(patterns_of(protect)):
        yield f"data.protect: {complaint}"
    placeholders = {f"⟨{kind_of(item)}{n + 1}⟩" for item in protect for n in range(PER_KIND)}
    size, min_size = subwords.vocab_size, MIN_VOCAB_SIZE + len({*symbols, *placeholders, *recipe.data.known_tags})
    if not subwords.vocab_from and size < min_size:
        yield f"subwords.vocab_size: {size} has no room for symbols, placeholders and tags (make it {min_size} or more)"
    if clashes := [symbol for symbol in symbols if symbol in placeholders]:
        yield f"subwords.symbols: {clashes[0]} is reserved for placeholders of data.protect (choose another symbol)"


def complaint_about_symbol(symbol: str, normalize: str) -> str | None:
    """Return the complaint about a text that cannot be a symbol of the subwords; None if it can."""
    if len(symbol) < 2 or not symbol.isprintable() or " " in symbol or len(symbol.encode("utf-8")) > 64:
        return "is not a symbol (write two or more printable characters, 64 bytes at most, without white space)"
    if symbol in ("<pad>", "<s>", "</s>"):
        return "is reserved as the name of a control symbol (choose another name)"
    if normalize != "none" and unicodedata.normalize("NFKC" if normalize == "nfkc" else "NFC", symbol) != symbol:
        return f"is changed by subwords.normalize: {normalize}, so it would never match (write its normalised form)"
    return None


def _of_model(recipe: "Recipe") -> Iterator[str]:
    model, d_model, n_head = recipe.model, recipe.model.d_model, recipe.model.n_head
    for name in type(model).model_fields:  # in the order of declaration
        if name in model.useless & model.model_fields_set:
            is_of_cell = name == "forget_bias" and model.is_recurrent
            reason = "cell: gru" if is_of_cell else f"architecture: {model.architecture}"
            yield f"model.{name}: has no effect with model.{reason} (remove it)"
    if model.emb_src_trg_weight_sharing and not recipe.subwords.joint:
        yield "model.emb_src_trg_weight_sharing: needs one vocabulary, but subwords.joint is false (change one)"
    if not model.trg_emb_prj_weight_sharing and model.scale_emb_or_prj != "none":
        yield "model.scale_emb_or_prj: has no effect without model.trg_emb_prj_weight_sharing (write none)"
    if model.is_recurrent:
        if model.enc_direction == "both" and d_model % 2:
            yield f"model.d_model: {d_model} is odd, but each direction of model.enc_direction both has half of it"
        if model.input_feeding and recipe.train.parallel == "fsdp":
            yield "train.parallel: fsdp shards whole layers, but model.input_feeding runs them step by step (use ddp)"
        for name in ("batch.packed", "train.compile", "train.checkpoint_activations"):
            if attrgetter(name)(recipe) is True:
                yield f"{name}: not supported by model.architecture {model.architecture} (remove it)"
        return
    if model.enc_conv and model.enc_conv % 2 == 0:
        yield f"model.enc_conv: {model.enc_conv} is even, so no word is in the middle (use an odd number, or 0)"
    if model.preset == "auto":
        return  # the sizes are not known yet; the resolved recipe is checked again
    if model.rotary_enc_attn and model.position != "rotary":
        yield f"model.rotary_enc_attn: needs model.position rotary, which is {model.position} (set this to false)"
    if model.position == "sinusoid" and d_model % 2:
        yield f"model.position: sinusoid needs an even model.d_model, which is {d_model}"
    for name in ("n_kv_head", "enc_n_kv_head"):
        if (n_kv_head := getattr(model, name)) is not None and n_head % n_kv_head:
            yield f"model.{name}: {n_kv_head} does not divide model.n_head, which is {n_head}"
    if d_model % n_head and (model.d_k is None or model.d_v is None):
        divisors = ", ".join(str(n) for n in range(1, min(d_model, 64) + 1) if d_model % n == 0)
        yield (
            f"model.n_head: {n_head} heads do not divide model.d_model, which is {d_model} (take one of {divisors}, or "
            "give both model.d_k and model.d_v)"
        )
    elif model.position == "rotary" and (d_k := model.d_k or d_model // n_head) % 2:
        yield f"model.position: rotary needs an even model.d_k (or model.d_model / model.n_head), which is {d_k}"


def _of_batch(recipe: "Recipe") -> Iterator[str]:
    model, batch, kind = recipe.model, recipe.batch, recipe.subwords.kind
    if batch.bpe_dropout and kind in ("unigram", "word", "sentencepiece"):
        yield f"batch.bpe_dropout: subwords.kind: {kind} has no merges to drop (set this to 0)"
    if batch.unigram_alpha and kind != "unigram":
        yield f"batch.unigram_alpha: pieces of subwords.kind: {kind} have no probabilities (set this to 0)"
    if batch.tokens_per_update and batch.per_update > 1:
        yield "batch.per_update: batch.tokens_per_update decides how many make an update (remove one of the two)"
    if recipe.train.cuda_graphs and not (recipe.train.compile and batch.packed):
        yield "train.cuda_graphs: needs train.compile and batch.packed (set both to true, or this to false)"
    if not batch.packed or model.is_recurrent:
        return
    if recipe.regularize.noise.shares():
        yield "batch.packed: regularize.noise makes pairs longer than planned (turn one of the two off)"
    if batch.max_tokens == "auto" or batch.max_tokens <= recipe.data.max_len:
        yield f"batch.packed: needs a number above data.max_len for batch.max_tokens, which is {batch.max_tokens}"
    if model.dropout if model.attn_dropout is None else model.attn_dropout:
        yield "batch.packed: its attention kernel has no dropout (set model.attn_dropout to 0)"
    if model.lexical_attn:
        yield "batch.packed: its attention kernel does not support model.lexical_attn (set one of the two to false)"
    d_k, d_v = (width or model.d_model // model.n_head for width in (model.d_k, model.d_v))
    if d_k != d_v or d_k % 8 or d_k > 256:
        yield "batch.packed: its kernel needs model.d_k and model.d_v equal, a multiple of 8 up to 256"


def _of_training(recipe: "Recipe") -> Iterator[str]:
    optim, train, regularize, model = recipe.optim, recipe.train, recipe.regularize, recipe.model
    warmup, schedule, updates = optim.warmup, optim.schedule, train.updates
    if warmup != "auto":  # auto fits any length
        if schedule not in (*WITHOUT_END, "auto") and warmup > updates:
            yield f"optim.warmup: {warmup} is more than train.updates, {updates}: optim.schedule would never decay"
        elif schedule == "wsd" and not train.time_budget and warmup > round((1 - optim.decay_share) * updates):
            yield f"optim.decay_share: wsd would decay within the optim.warmup of {warmup} updates (lower one of them)"
    if optim.name == "muon" and schedule == "noam":
        yield "optim.schedule: noam computes the rate itself, but optim.name muon has two (choose another schedule)"
    if train.average in ("last", "best") and getattr(train, f"keep_{train.average}") == 1:
        yield f"train.average: {train.average} needs train.keep_{train.average} above 1 (raise that, or write none)"
    if train.parallel == "fsdp" and (train.compiled or train.cuda_graphs):
        yield "train.parallel: fsdp supports neither train.compile nor train.cuda_graphs (use ddp, or set both false)"
    if (total := sum(regularize.noise.shares().values())) > 1:
        yield f"regularize.noise: a pair has one kind of noise at most, but the shares add up to {total:g} (lower some)"
    if regularize.r_drop and regularize.simcut:
        yield "regularize.r_drop: regularize.simcut already compares two passes (set one of the two to 0)"
    word_dropout = max(regularize.src_word_dropout, regularize.trg_word_dropout)
    dropouts = (model.dropout, model.emb_dropout, model.attn_dropout, model.act_dropout, word_dropout)
    if regularize.r_drop and not any(dropouts):
        yield "regularize.r_drop: without model.dropout both passes are the same (raise that, or set this to 0)"


def _of_translation(recipe: "Recipe") -> Iterator[str]:
    decode, metric, valid = recipe.decode, recipe.valid.metric, recipe.data.valid
    measure = (valid[0].measure if valid else None) or ("translate" if recipe.valid.translate else "loss")
    if metric not in ("loss", "accuracy") and measure == "loss":
        yield f"valid.metric: {metric} is not measured on the first set (set valid.translate, or measure in data.valid)"
    name, n_candidate = "samples" if decode.samples else "beam", decode.n_candidate
    if decode.n_best > n_candidate:
        yield f"decode.n_best: {decode.n_best} is more than decode.{name}, which is {n_candidate}"
    if decode.qe and n_candidate < 2:
        yield f"decode.qe: ranks two or more, but decode.{name} is {n_candidate} (raise that, or leave it out)"
    n_kept, note = (math.ceil(n_candidate / 2), ", half of which decode.qe leaves") if decode.qe else (n_candidate, "")
    if decode.mbr != "none" and n_kept < 3:
        problem = f"decode.{name} is {n_candidate}{note} (raise that, or write none)"
        yield f"decode.mbr: chooses among three or more hypotheses, but {problem}"
    for part in ("a", "b"):
        min_len, max_len = getattr(decode, f"min_len_{part}"), getattr(decode, f"max_len_{part}")
        if min_len > max_len:
            yield f"decode.min_len_{part}: {min_len} is more than decode.max_len_{part}, which is {max_len}"
    if recipe.model.undecided:
        return  # layers and heads are not known yet; the resolved recipe is checked again
    grid = recipe.model.attention_grids.get("cross", (0, 0))
    for name, count in zip(("align_layer", "align_head"), grid, strict=True):
        if (number := getattr(decode, name)) > count:
            yield f"decode.{name}: {number}, but the decoder of the model has only {count} with cross-attention"
