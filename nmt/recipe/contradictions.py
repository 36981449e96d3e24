"""Options that are each allowed, but not together.

Every complaint begins with the dotted name to change and names the other options that take part by their dotted
names too: the reader finds the line by the first, and stays silent when one of the others is itself mistaken.
"""

import unicodedata
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nmt.recipe.data_options import (
    PER_KIND,
    SENTENCEPIECE_ENDINGS,
    SMALLEST,
    complaint_about_patterns,
    kind_of,
    patterns_of,
)
from nmt.recipe.decode_options import OF_SAMPLES
from nmt.recipe.training_options import WITHOUT_END

if TYPE_CHECKING:
    from nmt.recipe.data_options import CorpusFiles, DataConfig, SubwordsConfig, TrainingCorpus
    from nmt.recipe.model_options import ModelConfig
    from nmt.recipe.options import Recipe
    from nmt.recipe.training_options import OptimConfig, RegularizeConfig, TrainConfig

# What is in a file, by the ending of its name less .gz and the like; anything else is text.
ENDINGS = {f".{kind}": kind for kind in ("tsv", "jsonl", "parquet", "arrow", "csv", "tmx")} | {".ndjson": "jsonl"}
# What is not read, and how it becomes what is.
_SPREADSHEET = "a spreadsheet. Save it as CSV in UTF-8, and name that"
_XLIFF = "XLIFF. Make CSV of it with the Translate Toolkit: xliff2po IN OUT.po; po2csv OUT.po OUT.csv"
NOT_READ = dict.fromkeys((".xlsx", ".xls", ".ods"), _SPREADSHEET) | dict.fromkeys((".xlf", ".xliff"), _XLIFF)
# Adam divides what it is given by its own size, so that a decay in the gradient is not scaled by the rate but competes
# with the loss (Loshchilov and Hutter 2019, "Decoupled weight decay regularization").
MOST_COUPLED_DECAY = 0.01


def find_contradictions(recipe: "Recipe") -> list[str]:
    """Everything in a recipe that cannot be meant, as "dotted.name: what is wrong and what to do"."""
    data, subwords, model = recipe.data, recipe.subwords, recipe.model
    return [
        *_of_data(data),
        *_of_subwords(subwords),
        *_of_protection(data, subwords),
        *_of_model(model, joint=subwords.joint),
        *_of_recurrent(recipe),
        *_of_batch(recipe),
        *_of_optim(recipe.optim, recipe.train),
        *_of_train(recipe.train),
        *_of_regularize(recipe.regularize, model, graphs=recipe.train.cuda_graphs),
        *_of_translation(recipe),
    ]


def names_of(files: str | list[str] | None) -> list[str]:
    """The names of an option that takes one or several."""
    return [files] if isinstance(files, str) else files or []


def _of_data(data: "DataConfig") -> Iterator[str]:
    names = [files.name.lower() for files in data.valid]  # file names, and some systems do not tell A from a
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        yield f"data.valid: several sets are called {', '.join(twice)} (give each a name of its own: name: …)"
    if data.valid_size and data.valid:
        yield "data.valid_size: data.valid names validation files (remove one of the two)"
    if data.valid_size and any(corpus.tags or corpus.trg_lang for corpus in data.train):
        yield "data.valid_size: pairs of corpora with tags are not drawn (name a validation set in data.valid)"
    ratios = {"data": data.max_ratio}
    ratios |= {f"data.train.{n}": getattr(one, "max_ratio", None) or 0.0 for n, one in enumerate(data.train)}
    for where, ratio in ratios.items():
        if 0 < ratio < 1:
            yield f"{where}.max_ratio: {ratio:g} is below 1, but the ratio is that of the longer side (0: any ratio)"
    for n, corpus in enumerate(data.train):
        yield from _of_flags(f"data.train.{n}", corpus)
    named: dict[str, CorpusFiles] = {f"data.train.{n}": files for n, files in enumerate(data.train)}
    named |= {f"data.valid.{n}": files for n, files in enumerate(data.valid)}
    for where, files in (named | ({"data.test": data.test} if data.test else {})).items():
        yield from _of_place(where, files)
        yield from _of_columns(where, files)


def _of_place(where: str, files: "CorpusFiles") -> Iterator[str]:
    """There is one place that the pairs come from."""
    given = {name for name in ("dataset", "file", "src", "trg") if getattr(files, name) is not None}
    for name in sorted(given):
        if getattr(files, name) in ("", []) or "" in names_of(getattr(files, name)):
            yield f"{where}.{name}: no name in it (expected a file)"
    if {"file", "dataset"} <= given:
        yield f"{where}.dataset: {where}.file is given as well (remove one of the two)"
    elif one := next(iter(given & {"file", "dataset"}), None):
        for side in sorted(given - {one}):
            yield f"{where}.{side}: a file beside {where}.{one}, which has both sides (remove it; see {side}_column)"
    else:
        for side in ("src", "trg"):
            if side not in given:
                yield f"{where}.{side}: missing (expected a file; or {{file: …}} or {{dataset: …}} with both sides)"
    if files.dataset is not None and files.split is None:
        yield f"{where}.split: missing (expected the split of the dataset: train, validation, …)"
    for name in ("subset", "split") if files.dataset is None else ():
        if getattr(files, name) is not None:
            yield f"{where}.{name}: there is no {where}.dataset to choose from (remove it)"


def _of_columns(where: str, files: "CorpusFiles") -> Iterator[str]:
    """It is said where in a file or dataset the sides stand."""
    columns = {side: getattr(files, f"{side}_column") for side in ("src", "trg")}
    given = [column for column in columns.values() if column is not None]
    # Those of a file are found by their names where none is told.
    if (files.file is not None and given) or (files.file is None and files.dataset is not None):
        for side, column in columns.items():
            if column is None:
                yield f"{where}.{side}_column: missing (expected the name of a column or key, or in TSV its number)"
        if len(given) == 2 and given[0] == given[1]:
            yield f"{where}.trg_column: {given[0]} is {where}.src_column, too (the two sides stand in two columns)"
    if files.format == "text":
        for name in ("file", "src_column", "trg_column"):
            if getattr(files, name) is not None:
                yield f"{where}.{name}: {where}.format is text, which has one sentence a line and no columns"
    elif files.format is not None and files.dataset is not None:
        yield f"{where}.format: a dataset says itself what is in it (remove it)"
    elif files.format is not None and not given and files.file is None:
        yield f"{where}.format: {files.format}, but no column is chosen (add {where}.src_column or trg_column)"
    if files.format not in (None, "tsv", "csv") and files.header is not None:
        yield f"{where}.header: only TSV and CSV have one, but {where}.format is {files.format} (remove it)"
    if files.header is False and (texts := [column for column in given if isinstance(column, str)]):
        yield f"{where}.header: without one {texts[0]!r} names no column (give its number, from 1)"


def _of_flags(where: str, corpus: "TrainingCorpus") -> Iterator[str]:
    """Flags stand in JSONL and nowhere else."""
    columns = corpus.src_column is not None or corpus.trg_column is not None
    if corpus.drop_flagged and (corpus.dataset is not None or corpus.format not in (None, "jsonl") or not columns):
        what = f"{where}.dataset" if corpus.dataset is not None else f"{where}.format"
        yield (
            f"{where}.drop_flagged: flags stand in the JSONL of nmt-translate, but {what} says that this is none "
            "(write translations with --format jsonl, and choose keys with src_column and trg_column)"
        )


def _of_subwords(subwords: "SubwordsConfig") -> Iterator[str]:
    symbols, names, kind = subwords.symbols, subwords.vocab_names, subwords.kind
    if twice := [symbol for symbol in dict.fromkeys(symbols) if symbols.count(symbol) > 1]:
        yield f"subwords.symbols: {', '.join(twice)} occurs twice (name each once)"
    for symbol in symbols:
        if complaint := complaint_about_symbol(symbol, subwords.normalize):
            yield f"subwords.symbols: {symbol!r} {complaint}"
    if len(names) > (most := 1 if subwords.joint else 2):
        why = str(subwords.joint).lower()
        yield f"subwords.vocab_from: {len(names)} models, but subwords.joint is {why} (name {most} at most)"
    if kind != "sentencepiece" and names[0].endswith(SENTENCEPIECE_ENDINGS):
        yield f"subwords.kind: {kind}, but subwords.vocab_from is a model of SentencePiece (sentencepiece)"
    if kind == "sentencepiece":
        if not subwords.vocab_from:
            yield "subwords.kind: sentencepiece learns nothing (name its model file with subwords.vocab_from)"
        if subwords.extend:
            yield "subwords.extend: nothing can be added to pieces of subwords.kind: sentencepiece (remove it)"
        for name, usual in (("normalize", "nfc"), ("whitespace", "unified")):
            if getattr(subwords, name) != usual:
                yield f"subwords.{name}: has no say where subwords.kind: sentencepiece brings its own rules (remove it)"
    if subwords.extend and not subwords.vocab_from:
        yield "subwords.extend: there is nothing to extend (name a run with subwords.vocab_from, or remove this)"
    least = SMALLEST + len(symbols)
    if not subwords.vocab_from and subwords.vocab_size < least:  # as many as without symbols
        yield (
            f"subwords.vocab_size: {subwords.vocab_size} has no room for the {len(symbols)} of subwords.symbols beside "
            f"256 bytes and the control symbols (make it {least} or more)"
        )


def _of_protection(data: "DataConfig", subwords: "SubwordsConfig") -> Iterator[str]:
    kinds = set(map(kind_of, data.protect))
    if twice := [one for one in dict.fromkeys(data.protect) if data.protect.count(one) > 1]:
        yield f"data.protect: {', '.join(twice)} occurs twice (name each once)"
        return
    if complaint := complaint_about_patterns(patterns_of(data.protect)):
        yield f"data.protect: {complaint}"
    shown = {f"⟨{kind}{n + 1}⟩" for kind in kinds for n in range(PER_KIND)}
    if named := [one for one in subwords.symbols if one in shown]:
        yield f"subwords.symbols: {named[0]} is how a placeholder of data.protect is shown (choose another symbol)"
    room = subwords.vocab_size - SMALLEST - len(subwords.symbols)
    if kinds and not subwords.vocab_from and 0 <= room < (n := PER_KIND * len(kinds)):
        least = subwords.vocab_size - room + n
        yield (
            f"subwords.vocab_size: {subwords.vocab_size} has no room for the {n} placeholders of data.protect (make it "
            f"{least} or more)"
        )


def complaint_about_symbol(symbol: str, normalize: str) -> str | None:
    """Return why a text can be no symbol of the subwords; None if it can."""
    if len(symbol) < 2 or not symbol.isprintable() or any(map(str.isspace, symbol)):
        return "is no symbol (write two or more printable characters without white space)"
    if len(symbol.encode("utf-8")) > 64:
        return "is longer than 64 bytes (shorten it)"
    if symbol in ("<pad>", "<s>", "</s>"):
        return "is the name of a control symbol, which stays ordinary text in a text (choose another name)"
    if normalize != "none" and unicodedata.normalize("NFKC" if normalize == "nfkc" else "NFC", symbol) != symbol:
        return f"is changed by subwords.normalize: {normalize}, so it would never be found (write it as that does)"
    return None


def _of_model(model: "ModelConfig", *, joint: bool) -> Iterator[str]:
    for name in type(model).model_fields:  # in their order
        if name in model.useless & model.model_fields_set:
            of_cell = name == "forget_bias" and model.is_recurrent
            because = "cell: gru" if of_cell else f"architecture: {model.architecture}"
            yield f"model.{name}: means nothing where model.{because} (remove it)"
    if model.emb_src_trg_weight_sharing and not joint:
        yield (
            "model.emb_src_trg_weight_sharing: source and target cannot share embeddings when their vocabularies "
            "differ, and subwords.joint is false (set this to false, or subwords.joint to true)"
        )
    if not model.trg_emb_prj_weight_sharing:
        if model.scale_emb_or_prj != "none":
            yield "model.scale_emb_or_prj: has no effect when model.trg_emb_prj_weight_sharing is false (write none)"
        if model.prj_transform and not model.is_recurrent:
            yield "model.prj_transform: is of no use when model.trg_emb_prj_weight_sharing is false (set this to false)"
    d_model, n_head = model.d_model, model.n_head
    if model.is_recurrent:
        if model.enc_direction == "both" and d_model % 2:
            yield f"model.d_model: {d_model} is odd, but each direction of model.enc_direction both has half of it"
        return
    if model.enc_conv and model.enc_conv % 2 == 0:
        yield f"model.enc_conv: of {model.enc_conv} neighbouring words none is in the middle (take an odd number, or 0)"
    if model.preset == "auto":
        return  # its sizes are not known yet; this is asked again when they are
    if cannot_share := d_model % n_head and (model.d_k is None or model.d_v is None):
        divisors = ", ".join(str(n) for n in range(1, min(d_model, 64) + 1) if d_model % n == 0)
        yield (
            f"model.n_head: {n_head} heads do not divide model.d_model, which is {d_model} (take "
            f"{' or '.join(divisors.rsplit(', ', 1))}, or give both model.d_k and model.d_v)"
        )
    for name in ("n_kv_head", "enc_n_kv_head"):
        if (shared := getattr(model, name)) is not None and n_head % shared:
            yield f"model.{name}: {shared} does not divide model.n_head, which is {n_head}"
    if cannot_share:
        return  # an odd width of a head would follow from it, and is no mistake of its own
    d_k = model.d_k if model.d_k is not None else d_model // n_head
    if model.position == "rotary" and d_k % 2:
        yield f"model.position: rotary turns pairs, but model.d_k (or model.d_model / model.n_head) is {d_k}, odd"
    if model.rotary_enc_attn and model.position != "rotary":
        yield f"model.rotary_enc_attn: needs model.position rotary, which is {model.position} (set this to false)"
    if model.position == "sinusoid" and d_model % 2:
        yield f"model.position: sinusoid takes a sine and a cosine each, but model.d_model is {d_model}, odd"


def _of_recurrent(recipe: "Recipe") -> Iterator[str]:
    """Options that recurrent models do not have."""
    for name, is_on, why in (
        ("batch.packed", recipe.batch.packed, "reads sentences one by one, not end to end"),
        ("train.compile", recipe.train.compile, "runs in kernels that a compiler cannot better"),
        ("train.checkpoint_activations", recipe.train.checkpoint_activations, "computes nothing twice"),
        ("regularize.layer_drop", bool(recipe.regularize.layer_drop), "has no layer that can be left out"),
    ):
        if is_on and recipe.model.is_recurrent:
            yield f"{name}: a model of model.architecture {recipe.model.architecture} {why} (remove it)"


def _of_batch(recipe: "Recipe") -> Iterator[str]:
    model, batch, kind = recipe.model, recipe.batch, recipe.subwords.kind
    if batch.bpe_dropout and kind in ("unigram", "word", "sentencepiece"):
        yield f"batch.bpe_dropout: subwords.kind: {kind} has no merges to leave out (set this to 0)"
    if batch.unigram_alpha and kind != "unigram":
        yield f"batch.unigram_alpha: pieces of subwords.kind: {kind} have no probabilities (set this to 0)"
    if batch.tokens_per_update and batch.per_update > 1:
        yield "batch.per_update: batch.tokens_per_update decides how many make an update (remove one of the two)"
    if recipe.train.cuda_graphs and not (recipe.train.compile and batch.packed):
        yield "train.cuda_graphs: needs train.compile and batch.packed (set both to true, or this to false)"
    if not batch.packed:
        return
    if recipe.regularize.noise.shares():
        yield "batch.packed: regularize.noise makes pairs longer than they were planned with (set one of the two to 0)"
    if batch.max_tokens == "auto":
        yield "batch.packed: all its rows have one length, batch.max_tokens, which must be a number, not auto"
    elif batch.max_tokens <= (longest := recipe.data.max_len):
        yield (
            f"batch.packed: a pair of data.max_len, which is {longest}, and its end do not fit a row of "
            f"batch.max_tokens, which is {batch.max_tokens} (raise the latter)"
        )
    if model.dropout if model.attn_dropout is None else model.attn_dropout:
        yield "batch.packed: its attention kernel knows no dropout (set model.attn_dropout to 0)"
    if model.lexical_attn:
        yield "batch.packed: its attention kernel is not made for model.lexical_attn (set one of the two to false)"
    d_k = model.d_k or model.d_model // model.n_head
    if model.d_k != model.d_v:
        yield "batch.packed: its attention kernel wants model.d_k and model.d_v equal"
    elif d_k % 8 or d_k > 256:
        yield (
            "batch.packed: its attention kernel wants heads whose width is a multiple of 8 up to 256, but model.d_k "
            f"(or model.d_model / model.n_head) is {d_k}"
        )


def _of_optim(optim: "OptimConfig", train: "TrainConfig") -> Iterator[str]:
    warmup, schedule, updates = optim.warmup, optim.schedule, train.updates
    if warmup != "auto":  # which fits
        if schedule not in (*WITHOUT_END, "auto") and warmup > updates:
            yield f"optim.warmup: {warmup} is more than train.updates, {updates}: optim.schedule would never decay"
        elif schedule == "wsd" and not train.time_budget and warmup > round((1 - optim.decay_share) * updates):
            yield (
                f"optim.decay_share: the decay over {optim.decay_share} of train.updates, {updates}, begins within "
                f"the optim.warmup of {warmup} updates (lower one of them)"
            )
    if optim.name == "muon" and schedule == "noam":
        yield "optim.schedule: noam computes the rate itself, but optim.name muon has two (choose another schedule)"
    if optim.name == "adam" and optim.weight_decay > MOST_COUPLED_DECAY:
        yield (
            f"optim.weight_decay: {optim.weight_decay} is added to the gradient by optim.name adam, and so much "
            "outweighs it: the model would not learn (write adamw, whose decay stands apart from the gradient)"
        )


def _of_train(train: "TrainConfig") -> Iterator[str]:
    if train.average in ("last", "best") and getattr(train, f"keep_{train.average}") == 1:
        yield f"train.average: {train.average} averages what train.keep_{train.average} keeps: one (keep more, or none)"
    if train.parallel == "fsdp" and train.compile:
        yield "train.parallel: fsdp does not go with train.compile (use ddp, or set train.compile to false)"
    if train.precision == "fp16" and train.device == "cpu":
        yield "train.precision: fp16 needs a GPU, but train.device is cpu (use auto, bf16 or fp32)"


def _of_regularize(regularize: "RegularizeConfig", model: "ModelConfig", *, graphs: bool) -> Iterator[str]:
    if (total := sum(regularize.noise.shares().values())) > 1:
        yield f"regularize.noise: a pair has one kind of noise at most, but the shares add up to {total:g} (lower some)"
    if regularize.layer_drop and graphs:
        yield "regularize.layer_drop: train.cuda_graphs replays all layers (set one of the two to 0 or false)"
    if regularize.r_drop and regularize.simcut:
        yield "regularize.r_drop: regularize.simcut compares two passes already (set one of the two to 0)"
    word_dropout = max(regularize.src_word_dropout, regularize.trg_word_dropout)
    dropouts = (model.dropout, model.emb_dropout, model.attn_dropout, model.act_dropout, word_dropout)
    if regularize.r_drop and not any(dropouts):
        yield "regularize.r_drop: without model.dropout both passes are the same (raise that, or set this to 0)"
    for name, strength in (
        ("r_drop", regularize.r_drop),
        ("simcut", regularize.simcut),
        ("word_dropout", word_dropout),
        ("layer_drop", regularize.layer_drop),
    ):
        if getattr(regularize, f"{name}_from") and not strength:
            option = "src_word_dropout" if name == "word_dropout" else name
            yield f"regularize.{name}_from: regularize.{option} is 0 (raise that, or remove this)"


def _of_translation(recipe: "Recipe") -> Iterator[str]:
    decode, metric, grid = recipe.decode, recipe.valid.metric, recipe.model.attention_grids.get("cross")
    first = recipe.data.valid[0].measure if recipe.data.valid else None
    if metric not in ("loss", "accuracy"):
        if first == "loss":
            yield f"valid.metric: {metric}, but the first set of data.valid measures loss (use that, or reorder)"
        elif first is None and not recipe.valid.translate:
            yield f"valid.metric: {metric} needs valid.translate, which is false (or use loss or accuracy)"
    name, n_candidate = "samples" if decode.samples else "beam", decode.n_candidate
    if decode.n_best > n_candidate:
        yield f"decode.n_best: {decode.n_best} is more than decode.{name}, which is {n_candidate}"
    if decode.mbr != "none" and n_candidate < 3:
        yield f"decode.mbr: chooses among three or more, but decode.{name} is {n_candidate} (raise that, or write none)"
    fields = type(decode).model_fields
    for option in OF_SAMPLES:
        if not decode.samples and getattr(decode, option) != fields[option].default:
            yield f"decode.{option}: nothing is drawn, as decode.samples is 0 (raise that, or remove this)"
    if decode.samples and decode.diversity:
        yield "decode.diversity: samples differ anyway, as decode.samples is not 0 (remove this, or set that to 0)"
    for part in ("a", "b"):
        least, most = getattr(decode, f"min_len_{part}"), getattr(decode, f"max_len_{part}")
        if least > most:
            yield f"decode.min_len_{part}: {least} is more than decode.max_len_{part}, which is {most}"
    if decode.align_head and not decode.align_layer:
        yield f"decode.align_head: {decode.align_head}, but of which layer? Name it: decode.align_layer"
    if recipe.model.undecided:
        return  # of the sizes, too; this is asked again when they are known
    for name, most in zip(("align_layer", "align_head"), grid or (0, 0), strict=True):
        if (number := getattr(decode, name)) > most:
            yield f"decode.{name}: {number}, but the decoder of the model has {most} of them that look at the source"
