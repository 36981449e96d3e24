"""Engines that a model can be exported to, and the options of a recipe that they have no place for.

Known from the recipe alone, before training and without the engines' packages.
"""

from collections.abc import Iterable, Iterator

from nmt.errors import RunError
from nmt.recipe.model_options import ModelConfig
from nmt.recipe.options import Recipe

_OF_HUGGINGFACE = ("relu", "gelu", "relu2")
_OF_CTRANSLATE2 = ("relu", "gelu", "swiglu")
# Values with which either engine takes a model, by the option that it would refuse.
_PORTABLE = {
    "model.architecture": "transformer",
    **dict.fromkeys(("model.lexical_attn", "model.prj_transform", "model.rotary_enc_attn", "model.qk_norm"), "false"),
    **dict.fromkeys(("model.n_kv_head", "model.enc_n_kv_head", "model.d_k", "model.d_v"), "null"),
    "model.enc_conv": "0",
    "model.ffn": "relu",
    "model.position": "sinusoid",
    "model.norm_kind": "layer",
    "subwords.joint": "true",
    "subwords.kind": "bpe",
    "subwords.symbols": "[]",
    "data.protect": "[]",
}


def unsupported(recipe: Recipe) -> dict[str, list[str]]:
    """Options that each engine cannot hold, with their values, by engine; an empty list where it takes the model."""
    if recipe.model.architecture != "transformer":
        odd = [f"model.architecture: {recipe.model.architecture}"]
        return {"ctranslate2": odd, "huggingface": odd}
    return {"ctranslate2": list(of_ctranslate2(recipe.model)), "huggingface": list(of_huggingface(recipe))}


def refuse_unsupported(engine: str, found: Iterable[str]) -> None:
    """Raise RunError, with what to train with instead, if anything is unsupported."""
    if told := list(found):
        raise RunError(
            f"{engine} has no place for {', '.join(told)}, so this model cannot be exported to it. Train with "
            f"{portable_flags(told)} for that. --to safetensors takes any model."
        )


def portable_options(found: list[str]) -> list[tuple[str, str]]:
    """The options to train with instead of some that `unsupported` found."""
    names = dict.fromkeys(one.split()[0].rstrip(":") for one in found)
    return [(name, _PORTABLE[name]) for name in names if name in _PORTABLE]


def portable_flags(found: list[str]) -> str:
    """The same as flags of a command."""
    return " ".join(f"--{name} {value}" for name, value in portable_options(found))


def exports_note(recipe: Recipe) -> str:
    """Engines that take the model of a recipe, and the flags that make it one for the others."""
    found = unsupported(recipe)
    taken = ", ".join(["nmt", *(engine for engine, its in found.items() if not its)])
    missing = [one for its in found.values() for one in its]
    more = f"; for {' and '.join(e for e, its in found.items() if its)}: {portable_flags(missing)}" if missing else ""
    return f"{taken}{more}"


def of_ctranslate2(config: ModelConfig) -> Iterator[str]:
    """Options whose models CTranslate2 has no boxes for, each with its value."""
    for name in ("lexical_attn", "prj_transform", "rotary_enc_attn", "qk_norm", "enc_conv"):
        if getattr(config, name):
            yield f"model.{name}"
    if config.ffn not in _OF_CTRANSLATE2:
        yield f"model.ffn: {config.ffn}"
    if config.d_k != config.d_v:
        yield "model.d_k other than model.d_v"


def of_huggingface(recipe: Recipe) -> Iterator[str]:
    """Options whose models no architecture there holds exactly, each with its value."""
    config, subwords = recipe.model, recipe.subwords
    width = config.d_model // config.n_head
    yield from (f"model.{name}" for name in ("rotary_enc_attn", "lexical_attn", "qk_norm") if getattr(config, name))
    for is_odd, told in (
        (config.enc_conv, "model.enc_conv"),
        (config.position == "rotary", "model.position: rotary"),
        (config.norm_kind != "layer", f"model.norm_kind: {config.norm_kind}"),
        (config.ffn not in _OF_HUGGINGFACE, f"model.ffn: {config.ffn}"),
        (config.n_kv_head not in (None, config.n_head), "model.n_kv_head other than model.n_head"),
        (config.enc_n_kv_head not in (None, config.n_head), "model.enc_n_kv_head other than model.n_head"),
        (config.d_k not in (None, width), "model.d_k other than model.d_model / model.n_head"),
        (config.d_v not in (None, width), "model.d_v other than model.d_model / model.n_head"),
        (not subwords.joint, "subwords.joint: false (a tokenizer there has one vocabulary)"),
        (subwords.kind == "unigram", "subwords.kind: unigram (control symbols would be found in text there)"),
        (subwords.kind == "sentencepiece", "subwords.kind: sentencepiece (it says itself how text is cut)"),
        (subwords.symbols, "subwords.symbols (a tokenizer there has other words for what touches them)"),
        (recipe.data.protect, "data.protect (nothing there puts items back)"),
    ):
        if is_odd:
            yield told


PRECISIONS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}  # our names, and torch's
