"""A Transformer as a model of Hugging Face's transformers.

BART holds models with norm: post, and Blenderbot, which has no norm after the embeddings, those with norm: pre. Their
norms have an epsilon of 1e-5, ours of 1e-6, which is the same of a residual stream that is sqrt(10) times as large:
what writes to the stream becomes so much larger, what reads from it so much smaller. Factors of embeddings and logits
go into the embeddings, and are taken out again by the last norm, so that a shared matrix stays shared.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors
from torch import Tensor, nn

from nmt.data.arrays import Ragged
from nmt.data.batches import pad
from nmt.data.lines import write_lines
from nmt.data.subwords import BOS, EOS, N_SPECIAL, PAD, Codec, Subwords
from nmt.data.text import DROPPED, SPACES
from nmt.decoding.long_lines import MAX_SRC_LEN
from nmt.decoding.scorer import gold_log_probs
from nmt.export.parity import N_POSITION, Exported, position_table
from nmt.extras import missing
from nmt.files import parse_json
from nmt.models.transformer.Models import Decoder, Encoder, Transformer
from nmt.recipe.draft import refuse_unsupported
from nmt.recipe.options import Recipe


def make_tokenizer(transformers: Any, codec: Codec) -> Any:
    """A fast tokenizer, which ends every text with EOS and never finds a control symbol in one."""
    # No merge makes control symbols, so no text does. One named like a piece gets a space, which no piece ends with.
    usual, pieces = {PAD: "<pad>", BOS: "<s>", EOS: "</s>"}, codec.names()
    pad, bos, eos = names = [f"{usual[i]} " if usual[i] in pieces else usual[i] for i in range(N_SPECIAL)]
    vocab = {name: i for i, name in enumerate([*names, *pieces, *codec.tags])}
    assert vocab[eos] == EOS and len(vocab) == codec.size
    is_word = codec.kind == "word"
    bpe: Any = models.BPE(vocab, codec.merges, byte_fallback=codec.characters, ignore_merges=is_word)
    tokenizer = Tokenizer(bpe)
    # A space before every text, even one that begins with a space, as `Codec.encode` puts it there.
    form: dict[str, list[Any]] = {"nfc": [normalizers.NFC()], "nfkc": [normalizers.NFKC()], "none": []}
    steps = [*form[codec.normalize], normalizers.Prepend(" ")]
    if codec.whitespace == "unified":
        single = [normalizers.Replace(Regex(SPACES), " "), normalizers.Replace(Regex("(?<=[^ ]) +$"), "")]
        unified = [normalizers.Prepend(" "), normalizers.Replace(Regex(DROPPED), ""), *single]
        steps = [*unified, *form[codec.normalize], *(single if codec.normalize == "nfkc" else [])]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = codec.letters.pre_tokenizer
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {eos}", pair=f"$A $B {eos}", special_tokens=[(eos, EOS)]
    )
    in_text = [decoders.ByteFallback(), decoders.Fuse()] if codec.characters else [decoders.ByteLevel()]
    tokenizer.decoder = decoders.Sequence([*in_text, decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    # Written before a text by its user, with or without a space after it.
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False, rstrip=True) for tag in codec.tags])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        bos_token=bos,
        eos_token=eos,
        model_max_length=MAX_SRC_LEN + 1,
        padding_side="right",
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
    )


_LARGER = (1e-5 / 1e-6) ** 0.5  # the residual stream there, for their norms to do what ours do
_N_TOGETHER = 32  # lines in a batch of a comparison
_N_SKIPPED = 2  # rows of BART's position table before that of the first position

Weights = dict[str, Tensor]


def library() -> Any:
    """The package, or a MachineError that says how to get it."""
    try:
        import transformers
    except ImportError:
        raise missing("huggingface", "transformers") from None
    theirs: Any = transformers.utils.logging
    theirs.disable_progress_bar()
    return transformers


def export(model: Transformer, recipe: Recipe, subwords: Subwords, folder: Path) -> None:
    """Write weights, config, generation config and tokenizer, in fp32.

    Raises RunError, naming the options, for a model that no architecture of transformers holds exactly.
    """
    refuse_unsupported("huggingface", recipe)
    transformers = library()
    with torch.inference_mode():
        weights = _weights(model, recipe)
    there = _empty(transformers, recipe, subwords.trg.n_vocab)
    there.load_state_dict(weights)
    there.generation_config = _generation(transformers, recipe, subwords)
    folder.mkdir(parents=True, exist_ok=True)
    there.save_pretrained(folder)
    make_tokenizer(transformers, subwords.src).save_pretrained(folder)
    for weights_file in folder.glob("*.safetensors"):  # which are for their owner alone
        shutil.copymode(folder / "config.json", weights_file)
    file = folder / "tokenizer_config.json"
    told = parse_json(file.read_bytes()) | {"tokenizer_class": "PreTrainedTokenizerFast"}  # as versions 4 and 5 know it
    write_lines(file, json.dumps(told, indent=2, ensure_ascii=False).split("\n"))


def _tied(recipe: Recipe) -> bool:
    """Return whether embeddings and projection are one matrix in transformers."""
    config = recipe.model
    shared = config.trg_emb_prj_weight_sharing and config.emb_src_trg_weight_sharing
    return shared and not config.prj_transform


def _empty(transformers: Any, recipe: Recipe, n_vocab: int) -> Any:
    """A model of theirs with our sizes."""
    config = recipe.model
    known: dict[str, Any] = {
        "vocab_size": n_vocab,
        "d_model": config.d_model,
        "activation_function": config.ffn,
        "max_position_embeddings": max(N_POSITION, config.n_position if config.position == "learned" else 0),
        "dropout": config.dropout,
        "attention_dropout": config.dropout if config.attn_dropout is None else config.attn_dropout,
        "activation_dropout": config.act_dropout,
        "tie_word_embeddings": _tied(recipe),
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
        "forced_eos_token_id": EOS,
    }
    for side, n_layer in (("encoder", config.n_enc_layer), ("decoder", config.n_dec_layer)):
        known |= {f"{side}_layers": n_layer, f"{side}_attention_heads": config.n_head}
        known |= {f"{side}_ffn_dim": config.d_inner}
    if config.norm == "pre":
        theirs = transformers.BlenderbotConfig(**known, encoder_no_repeat_ngram_size=0)
        return transformers.BlenderbotForConditionalGeneration(theirs).eval()
    return transformers.BartForConditionalGeneration(transformers.BartConfig(**known)).eval()


def _generation(transformers: Any, recipe: Recipe, subwords: Subwords) -> Any:
    """Return the defaults of generate(): the options of the recipe, as far as it has them.

    It divides by a power of the length, so the penalty of Wu et al. becomes that of decode.length_penalty: average.
    """
    decode = recipe.decode
    never = [PAD, BOS, *range(subwords.trg.n_text, subwords.trg.n_vocab)]
    return transformers.GenerationConfig(
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
        decoder_start_token_id=BOS,
        forced_eos_token_id=EOS,
        suppress_tokens=never,
        num_beams=decode.beam,
        length_penalty=1.0 if decode.beam == 1 else 0.0 if decode.length_penalty == "none" else decode.alpha,
        no_repeat_ngram_size=decode.no_repeat,
        max_length=min(N_POSITION, int(decode.max_len_a * recipe.data.max_len) + decode.max_len_b + 2),
    )


def _weights(model: Transformer, recipe: Recipe) -> Weights:
    """All that the state dict there holds."""
    config = recipe.model
    factor = 1.0 / (_LARGER * model.decoder.emb_scale) if _tied(recipe) else 1.0
    projection = model.output_weight
    if isinstance(model.prj_transform, nn.Linear):
        projection = projection @ model.prj_transform.weight
    found: Weights = {}
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        found |= _stack(f"model.{side}", stack, pre_norm=config.norm == "pre")
    # After the last norm nothing is left but the projection, so what that is to be multiplied by goes in here.
    last, norm = "model.decoder.layer_norm", "decoder.layer_norm"
    if config.norm == "post":
        last = f"model.decoder.layers.{config.n_dec_layer - 1}.final_layer_norm"
        norm = f"decoder.layer_stack.{config.n_dec_layer - 1}.pos_ffn.layer_norm"
    factor *= model.logit_scale
    found |= _scaled(last, model.get_submodule(norm), factor, factor)
    found["model.shared.weight"] = found["model.decoder.embed_tokens.weight"]
    found["lm_head.weight"] = found["model.shared.weight"] if _tied(recipe) else projection
    found["final_logits_bias"] = projection.new_zeros(1, len(projection))
    return found


# Of each layer: their name, ours, and what it does with the residual stream.
_LAYER = {
    "self_attn_layer_norm": ("slf_attn.layer_norm", "norms"),
    "self_attn.q_proj": ("slf_attn.w_qs", "reads"),
    "self_attn.k_proj": ("slf_attn.w_ks", "reads"),
    "self_attn.v_proj": ("slf_attn.w_vs", "reads"),
    "self_attn.out_proj": ("slf_attn.fc", "writes"),
    "final_layer_norm": ("pos_ffn.layer_norm", "norms"),
    "fc1": ("pos_ffn.w_1", "reads"),
    "fc2": ("pos_ffn.w_2", "writes"),
}
_CROSS_ATTENTION = {
    theirs.replace("self_attn", "encoder_attn"): (ours.replace("slf_attn", "enc_attn"), does)
    for theirs, (ours, does) in _LAYER.items()
    if "self_attn" in theirs
}


def _stack(name: str, stack: Encoder | Decoder, *, pre_norm: bool) -> Weights:
    """The residual stream is so much larger everywhere in it; with norm: post the norms hand it on that large."""
    # Of weight and bias.
    factors = {"reads": (1.0, 1.0), "norms": (1.0, 1.0), "writes": (_LARGER, _LARGER)}
    positions = position_table(stack.position_enc) * _LARGER
    if not pre_norm:
        factors |= {"reads": (1.0 / _LARGER, 1.0), "norms": (_LARGER, _LARGER)}
        positions = torch.cat([positions.new_zeros(_N_SKIPPED, positions.size(1)), positions])
    word_emb = stack.src_word_emb if isinstance(stack, Encoder) else stack.trg_word_emb
    found = {
        f"{name}.embed_tokens.weight": word_emb.weight * (_LARGER * stack.emb_scale),
        f"{name}.embed_positions.weight": positions,
    }
    own_norm = f"{name}.layer_norm" if pre_norm else f"{name}.layernorm_embedding"
    found |= _scaled(own_norm, stack.layer_norm, *factors["norms"])
    names = _LAYER | (_CROSS_ATTENTION if isinstance(stack, Decoder) else {})
    for n, layer in enumerate(stack.layer_stack):
        for theirs, (ours, does) in names.items():
            found |= _scaled(f"{name}.layers.{n}.{theirs}", layer.get_submodule(ours), *factors[does])
    return found


def _scaled(name: str, module: nn.Module, weight: float, bias: float) -> Weights:
    """A norm or a linear layer under its name there, where each has a bias."""
    assert isinstance(module, nn.LayerNorm | nn.Linear)
    theirs = module.weight.new_zeros(len(module.weight)) if module.bias is None else module.bias * bias
    return {f"{name}.weight": module.weight * weight, f"{name}.bias": theirs}


class Compared(Exported):
    """An exported folder as its users load it, for a comparison with the model that was exported."""

    def __init__(self, folder: Path, tags: Sequence[str] = ()) -> None:
        transformers, self._tags = library(), "".join(tags)
        tokenizer, model = transformers.AutoTokenizer, transformers.AutoModelForSeq2SeqLM
        self._tokenizer: Any = tokenizer.from_pretrained(folder, local_files_only=True)
        self._model: Any = model.from_pretrained(folder, local_files_only=True).eval()

    @torch.inference_mode()
    def greedy(self, lines: Sequence[str], most: int) -> list[str]:
        found: list[str] = []
        for first in range(0, len(lines), _N_TOGETHER):
            read = self._read(lines[first : first + _N_TOGETHER])
            ids = self._model.generate(**read, num_beams=1, no_repeat_ngram_size=0, max_length=most + 2)
            found += self._tokenizer.batch_decode(ids, skip_special_tokens=True)
        return found

    @torch.inference_mode()
    def score(self, lines: Sequence[str], trg_ids: Sequence[list[int]]) -> list[list[float]]:
        found: list[list[float]] = []
        for first in range(0, len(lines), _N_TOGETHER):
            trg = Ragged.of(trg_ids[first : first + _N_TOGETHER])
            logits = self._model(
                **self._read(lines[first : first + _N_TOGETHER]), decoder_input_ids=pad(trg, before=(BOS,))
            ).logits
            told = gold_log_probs(logits, pad(trg, after=(EOS,))).tolist()
            found += [row[: n + 1] for row, n in zip(told, trg.lengths.tolist(), strict=True)]
        return found

    def _read(self, lines: Sequence[str]) -> dict[str, Tensor]:
        lines = [f"{self._tags}{line}" for line in lines]
        return dict(self._tokenizer(lines, padding=True, return_tensors="pt"))
