"""Export of a Transformer to the transformers package of Hugging Face.

Models with norm: post become BART; those with norm: pre become Blenderbot, which has no norm after the embeddings. The
norms of transformers have an epsilon of 1e-5, those of nmt 1e-6. The results are equal if the residual stream is
sqrt(10) times as large: modules that write to the stream are scaled up, modules that read from it scaled down. Factors
of embeddings and logits go into the embeddings, and the last norm cancels them, so that a shared matrix stays shared.
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
from nmt.data.letters import in_words, name_of
from nmt.data.lines import write_lines
from nmt.data.subwords import BOS, EOS, PAD, SPECIAL_TEXT, Codec, Subwords
from nmt.data.text import DROPPED, SPACES
from nmt.decoding.long_lines import MAX_SRC_LEN
from nmt.decoding.scorer import gold_log_probs
from nmt.export.parity import N_POSITION, position_table
from nmt.extras import require
from nmt.files import parse_json
from nmt.models.transformer.Models import Transformer
from nmt.recipe.options import Recipe


def make_tokenizer(transformers: Any, codec: Codec) -> Any:
    """Return a fast tokenizer, which appends EOS to every text and never splits off a control symbol."""
    # No merge makes a control symbol, so no text does. One named like a piece gets a space; no piece ends with one.
    pieces = list(map(name_of, codec.vocab))
    pad, bos, eos = names = [f"{name} " if name in pieces else name for name in SPECIAL_TEXT]
    vocab = {name: i for i, name in enumerate([*names, *pieces, *codec.tags])}
    assert vocab[eos] == EOS and len(vocab) == codec.size
    tokenizer = Tokenizer(models.BPE(vocab, codec.merges, byte_fallback=True, ignore_merges=codec.kind == "word"))
    # A space is prepended to every text, even to one that begins with a space, as in `Codec.encode`.
    forms: dict[str, list[Any]] = {"nfc": [normalizers.NFC()], "nfkc": [normalizers.NFKC()], "none": []}
    steps = [*forms[codec.normalize], normalizers.Prepend(" ")]
    if codec.whitespace == "unified":
        single = [normalizers.Replace(Regex(SPACES), " "), normalizers.Replace(Regex("(?<=[^ ]) +$"), "")]
        unified = [normalizers.Prepend(" "), normalizers.Replace(Regex(DROPPED), ""), *single]
        steps = [*unified, *forms[codec.normalize], *(single if codec.normalize == "nfkc" else [])]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = in_words()
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {eos}", special_tokens=[(eos, EOS)])
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    # The user writes tags before a text, with or without a space after each.
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False, rstrip=True) for tag in codec.tags])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        bos_token=bos,
        eos_token=eos,
        model_max_length=MAX_SRC_LEN + 1,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
    )


_STREAM_SCALE = (1e-5 / 1e-6) ** 0.5  # of the residual stream, so that norms with another epsilon give equal results
_BATCH_SIZE = 32  # lines in a batch of a comparison
_N_SKIPPED = 2  # rows of BART's position table before the first position
_IDS = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
_IDS |= {"decoder_start_token_id": BOS, "forced_eos_token_id": EOS}

Weights = dict[str, Tensor]


def library() -> Any:
    """Import transformers. Raises MachineError, with the command to install it."""
    require("huggingface", "transformers")
    import transformers

    logging: Any = transformers.utils.logging
    logging.disable_progress_bar()
    return transformers


def export(model: Transformer, recipe: Recipe, subwords: Subwords, folder: Path) -> None:
    """Write weights, config, generation config and tokenizer, in fp32, of a model that `refuse_unsupported` allows."""
    transformers = library()
    with torch.inference_mode():
        weights = _weights(model, recipe)
    exported = _new_model(transformers, recipe, subwords.trg.n_vocab)
    exported.load_state_dict(weights)
    exported.generation_config = _generation(transformers, recipe, subwords)
    folder.mkdir(parents=True, exist_ok=True)
    exported.save_pretrained(folder)
    make_tokenizer(transformers, subwords.src).save_pretrained(folder)
    for path in folder.glob("*.safetensors"):  # written with permissions for the owner only
        shutil.copymode(folder / "config.json", path)
    path = folder / "tokenizer_config.json"
    config = parse_json(path.read_bytes()) | {"tokenizer_class": "PreTrainedTokenizerFast"}  # for versions 4 and 5
    write_lines(path, json.dumps(config, indent=2, ensure_ascii=False).split("\n"))


def _tied(recipe: Recipe) -> bool:
    """Return whether embeddings and projection are the same matrix in transformers."""
    config = recipe.model
    shared = config.trg_emb_prj_weight_sharing and config.emb_src_trg_weight_sharing
    return shared and not config.prj_transform


def _new_model(transformers: Any, recipe: Recipe, n_vocab: int) -> Any:
    config = recipe.model
    options: dict[str, Any] = {
        "vocab_size": n_vocab,
        "d_model": config.d_model,
        "activation_function": config.ffn,
        "max_position_embeddings": max(N_POSITION, config.n_position if config.position == "learned" else 0),
        "dropout": config.dropout,
        "attention_dropout": config.dropout if config.attn_dropout is None else config.attn_dropout,
        "activation_dropout": config.act_dropout,
        "tie_word_embeddings": _tied(recipe),
        "encoder_layers": config.n_enc_layer,
        "decoder_layers": config.n_dec_layer,
        **_IDS,
    }
    for side in ("encoder", "decoder"):
        options |= {f"{side}_attention_heads": config.n_head, f"{side}_ffn_dim": config.d_inner}
    if config.norm == "pre":
        blenderbot = transformers.BlenderbotConfig(**options, encoder_no_repeat_ngram_size=0)
        return transformers.BlenderbotForConditionalGeneration(blenderbot).eval()
    return transformers.BartForConditionalGeneration(transformers.BartConfig(**options)).eval()


def _generation(transformers: Any, recipe: Recipe, subwords: Subwords) -> Any:
    """Return the defaults of generate(): the decoding options of the recipe that it supports. It divides by a power of
    the length, so the penalty of Wu et al. becomes that of decode.length_penalty: average."""
    decode = recipe.decode
    return transformers.GenerationConfig(
        **_IDS,
        suppress_tokens=[PAD, BOS, *range(subwords.trg.n_text, subwords.trg.n_vocab)],
        num_beams=decode.beam,
        length_penalty=1.0 if decode.beam == 1 else 0.0 if decode.length_penalty == "none" else decode.alpha,
        no_repeat_ngram_size=decode.no_repeat,
        max_length=min(N_POSITION, int(decode.max_len_a * recipe.data.max_len) + decode.max_len_b + 2),
    )


# Modules of a layer: name in transformers, name in nmt, and role for the residual stream.
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
_DECODER_LAYER = _LAYER | {
    theirs.replace("self_attn", "encoder_attn"): (ours.replace("slf_attn", "enc_attn"), role)
    for theirs, (ours, role) in _LAYER.items()
    if "self_attn" in theirs
}


def _weights(model: Transformer, recipe: Recipe) -> Weights:
    """Return the weights by their names in transformers, with a residual stream that is larger by _STREAM_SCALE."""
    config, is_pre, weights = recipe.model, recipe.model.norm == "pre", Weights()
    # Factors of weight and bias. With norm: post the norms put out the stream, and are scaled, too.
    factors = {"reads": (1.0, 1.0), "norms": (1.0, 1.0), "writes": (_STREAM_SCALE, _STREAM_SCALE)}
    if not is_pre:
        factors |= {"reads": (1.0 / _STREAM_SCALE, 1.0), "norms": (_STREAM_SCALE, _STREAM_SCALE)}
    for stack, embedding in zip((model.encoder, model.decoder), model.embeddings, strict=True):
        name, modules = ("model.encoder", _LAYER) if stack is model.encoder else ("model.decoder", _DECODER_LAYER)
        positions = position_table(stack.position_enc) * _STREAM_SCALE
        skipped = positions.new_zeros(0 if is_pre else _N_SKIPPED, positions.size(1))
        weights[f"{name}.embed_positions.weight"] = torch.cat([skipped, positions])
        weights[f"{name}.embed_tokens.weight"] = embedding.weight * (_STREAM_SCALE * stack.emb_scale)
        stack_norm = f"{name}.layer_norm" if is_pre else f"{name}.layernorm_embedding"
        weights |= _scaled(stack_norm, stack.layer_norm, *factors["norms"])
        for n, layer in enumerate(stack.layer_stack):
            for theirs, (ours, role) in modules.items():
                weights |= _scaled(f"{name}.layers.{n}.{theirs}", layer.get_submodule(ours), *factors[role])
    # The norm before the projection takes the factor of the logits, and undoes that of a shared matrix.
    theirs, norm = "model.decoder.layer_norm", model.decoder.layer_norm
    if not is_pre:
        theirs = f"model.decoder.layers.{config.n_dec_layer - 1}.final_layer_norm"
        norm = model.decoder.layer_stack[-1].get_submodule("pos_ffn.layer_norm")
    factor = (1.0 / (_STREAM_SCALE * model.decoder.emb_scale) if _tied(recipe) else 1.0) * model.logit_scale
    weights |= _scaled(theirs, norm, factor, factor)
    projection = model.output_weight
    if isinstance(model.prj_transform, nn.Linear):
        projection = projection @ model.prj_transform.weight
    weights["model.shared.weight"] = weights["model.decoder.embed_tokens.weight"]
    weights["lm_head.weight"] = weights["model.shared.weight"] if _tied(recipe) else projection
    weights["final_logits_bias"] = projection.new_zeros(1, len(projection))
    return weights


def _scaled(name: str, module: nn.Module, weight: float, bias: float) -> Weights:
    """Return the parameters of a norm or a linear layer under its name in transformers, always with a bias."""
    assert isinstance(module, nn.LayerNorm | nn.Linear)
    new_bias = module.weight.new_zeros(len(module.weight)) if module.bias is None else module.bias * bias
    return {f"{name}.weight": module.weight * weight, f"{name}.bias": new_bias}


def translate_and_score(
    folder: Path, subwords: Subwords, lines: Sequence[str], trg_ids: Sequence[list[int]], most: int
) -> tuple[list[str], list[list[float]]]:
    """`parity.Exported`, by an exported folder, which the Auto classes load."""
    transformers = library()
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, local_files_only=True).eval()
    texts, scores = list[str](), list[list[float]]()
    tags = "".join(subwords.src.pieces(subwords.src.prefix))
    for first in range(0, len(lines), _BATCH_SIZE):
        batch = slice(first, first + _BATCH_SIZE)
        tagged, trg = [f"{tags}{line}" for line in lines[batch]], Ragged.of(trg_ids[batch])
        inputs = dict(tokenizer(tagged, padding=True, return_tensors="pt"))
        with torch.inference_mode():
            ids = model.generate(**inputs, num_beams=1, no_repeat_ngram_size=0, max_length=most + 2)
            logits = model(**inputs, decoder_input_ids=pad(trg, before=(BOS,))).logits
        texts += tokenizer.batch_decode(ids, skip_special_tokens=True)
        log_probs = gold_log_probs(logits, pad(trg, after=(EOS,))).tolist()
        scores += [row[: n + 1] for row, n in zip(log_probs, trg.lengths.tolist(), strict=True)]
    return texts, scores
