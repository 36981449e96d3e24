"""Options that are each allowed, but not together.

Every complaint begins with the dotted name to change and names the other options that take part by their dotted
names too: the reader finds the line by the first, and stays silent when one of the others is itself mistaken.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nmt.recipe.corpus_contradictions import find_corpus_contradictions
from nmt.recipe.decode_options import OF_SAMPLES
from nmt.recipe.subword_contradictions import find_subword_contradictions
from nmt.recipe.training_contradictions import find_training_contradictions

if TYPE_CHECKING:
    from nmt.recipe.data_options import DataConfig
    from nmt.recipe.model_options import ModelConfig
    from nmt.recipe.options import Recipe


def find_contradictions(recipe: "Recipe") -> list[str]:
    """Everything in a recipe that cannot be meant, as "dotted.name: what is wrong and what to do"."""
    return [
        *_of_data(recipe.data),
        *find_subword_contradictions(recipe),
        *find_corpus_contradictions(recipe.data),
        *_of_model(recipe.model, joint=recipe.subwords.joint),
        *_of_recurrent(recipe),
        *find_training_contradictions(recipe),
        *_of_translation(recipe),
        *_of_attention(recipe),
    ]


def _of_data(data: "DataConfig") -> Iterator[str]:
    names = [files.name.lower() for files in data.valid]  # file names, and some systems do not tell A from a
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        yield f"data.valid: several sets are called {', '.join(twice)} (give each a name of its own: name: …)"
    if data.valid_size and data.valid:
        yield "data.valid_size: data.valid names validation files (remove one of the two)"
    if data.valid_size and any(corpus.tags or corpus.trg_lang for corpus in data.train):
        yield "data.valid_size: pairs of corpora with tags are not drawn (name a validation set in data.valid)"


def _of_model(model: "ModelConfig", *, joint: bool) -> Iterator[str]:
    for name in type(model).model_fields:  # in their order
        if name in model.useless & model.model_fields_set:
            because = (
                "cell: gru" if name == "forget_bias" and model.is_recurrent else f"architecture: {model.architecture}"
            )
            yield f"model.{name}: means nothing where model.{because} (remove it)"
    if model.emb_src_trg_weight_sharing and not joint:
        yield (
            "model.emb_src_trg_weight_sharing: source and target cannot share embeddings when their vocabularies "
            "differ, and subwords.joint is false (set this to false, or subwords.joint to true)"
        )
    if model.scale_emb_or_prj != "none" and not model.trg_emb_prj_weight_sharing:
        yield (
            f"model.scale_emb_or_prj: {model.scale_emb_or_prj} has no effect when model.trg_emb_prj_weight_sharing is "
            "false (remove it, or write none)"
        )
    if model.is_recurrent:
        if model.enc_direction == "both" and model.d_model % 2:
            yield (
                f"model.d_model: {model.d_model} is odd, but each direction of model.enc_direction both has half of it"
            )
        return
    if model.prj_transform and not model.trg_emb_prj_weight_sharing:
        yield (
            "model.prj_transform: a projection that model.trg_emb_prj_weight_sharing: false sets free needs no further "
            "matrix before it (set this to false)"
        )
    if model.enc_conv and model.enc_conv % 2 == 0:
        yield (
            f"model.enc_conv: of {model.enc_conv} neighbouring words none is in the middle (take an odd number, or 0 "
            "for none)"
        )
    if model.preset == "auto":
        return  # its sizes are not known yet; this is asked again when they are
    if cannot_share := model.d_model % model.n_head and (model.d_k is None or model.d_v is None):
        yield (
            f"model.n_head: {model.n_head} heads do not divide model.d_model, which is {model.d_model} (take "
            f"{_divisors(model.d_model)}, or give both model.d_k and model.d_v)"
        )
    for name in ("n_kv_head", "enc_n_kv_head"):
        if (shared := getattr(model, name)) is not None and model.n_head % shared:
            yield f"model.{name}: {shared} does not divide model.n_head, which is {model.n_head}"
    if cannot_share:
        return  # an odd width of a head would follow from it, and is no mistake of its own
    d_k = model.d_k if model.d_k is not None else model.d_model // model.n_head
    if model.position == "rotary" and d_k % 2:
        yield f"model.position: rotary turns pairs, but model.d_k (or model.d_model / model.n_head) is {d_k}, odd"
    if model.rotary_enc_attn and model.position != "rotary":
        yield (
            "model.rotary_enc_attn: rotary positions are wanted over the source, but model.position is "
            f"{model.position} (set that to rotary, or this to false)"
        )
    if model.position == "sinusoid" and model.d_model % 2:
        yield f"model.position: sinusoid takes a sine and a cosine each, but model.d_model is {model.d_model}, odd"


def _divisors(width: int) -> str:
    """The numbers of heads that a width has room for, in words."""
    *most, last = (n for n in range(1, min(width, 64) + 1) if width % n == 0)
    return f"{', '.join(map(str, most))} or {last}" if most else str(last)


def _of_recurrent(recipe: "Recipe") -> Iterator[str]:
    """What the recurrent models cannot have of the other sections."""
    if not recipe.model.is_recurrent:
        return
    for name, is_on, why in (
        ("batch.packed", recipe.batch.packed, "reads sentences one by one, not end to end"),
        ("train.compile", recipe.train.compile, "runs in kernels that a compiler cannot better"),
        ("train.checkpoint_activations", recipe.train.checkpoint_activations, "computes nothing twice"),
        ("regularize.layer_drop", bool(recipe.regularize.layer_drop), "has no layer that can be left out"),
    ):
        if is_on:
            yield f"{name}: a model of model.architecture {recipe.model.architecture} {why} (remove it)"


def _of_translation(recipe: "Recipe") -> Iterator[str]:
    first = recipe.data.valid[0].measure if recipe.data.valid else None
    if recipe.valid.metric in ("bleu", "chrf"):
        if first == "loss":
            yield (
                f"valid.metric: {recipe.valid.metric} is measured on the first set of data.valid, whose measure is "
                "loss (put another set first, or use loss or accuracy)"
            )
        elif first is None and not recipe.valid.translate:
            yield f"valid.metric: {recipe.valid.metric} needs valid.translate, which is false (or use loss or accuracy)"
    decode = recipe.decode
    name = "samples" if decode.samples else "beam"
    if decode.n_best > decode.n_candidate:
        yield f"decode.n_best: {decode.n_best} is more than decode.{name}, which is {decode.n_candidate}"
    if decode.mbr != "none" and decode.n_candidate < 3:
        yield (
            f"decode.mbr: to choose by likeness takes three or more, but decode.{name} is {decode.n_candidate} (raise "
            "that, or set this to none)"
        )
    fields = type(decode).model_fields
    for option in OF_SAMPLES:
        if not decode.samples and getattr(decode, option) != fields[option].default:
            yield f"decode.{option}: nothing is drawn, as decode.samples is 0 (raise that, or remove this)"
    if decode.samples and decode.diversity:
        yield "decode.diversity: samples differ anyway, as decode.samples is not 0 (remove this, or set that to 0)"
    if decode.coverage and (decode.samples or decode.mbr != "none"):
        other = "samples" if decode.samples else "mbr"
        yield f"decode.coverage: has no say in what decode.{other} chooses (remove one of them)"
    for part in ("a", "b"):
        least, most = getattr(decode, f"min_len_{part}"), getattr(decode, f"max_len_{part}")
        if least > most:
            yield f"decode.min_len_{part}: {least} is more than decode.max_len_{part}, which is {most}"


def _of_attention(recipe: "Recipe") -> Iterator[str]:
    decode, grid = recipe.decode, recipe.model.attention_grids.get("cross")
    if decode.coverage and grid is None:
        yield f"decode.coverage: {decode.coverage}, but no word that it writes looks at the source (set it to 0)"
    if decode.align_head and not decode.align_layer:
        yield f"decode.align_head: {decode.align_head}, but of which layer? Name it: decode.align_layer"
    if recipe.model.undecided:
        return  # of the sizes, too; this is asked again when they are known
    for name, most in zip(("align_layer", "align_head"), grid or (0, 0), strict=True):
        if (number := getattr(decode, name)) > most:
            yield f"decode.{name}: {number}, but the decoder of the model has {most} of them that look at the source"
