"""OpenNMT-py as a contender of bench_decoding.py: our weights in its modules, translated by its own search.

Its releases want versions of torch that are older than ours, so it cannot be installed beside us; without what it
depends on and in a folder of its own (`INSTALL`) it works. What only its preparation of texts imports stays away: here
come ids in, and go ids out.
"""

import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from nmt.api import Model
from nmt.data.arrays.ragged import Ragged
from nmt.data.batching.padding import pad
from nmt.data.vocabulary.subwords import BOS, EOS, N_SPECIAL, PAD
from nmt.errors import MachineError, RunError
from nmt.export.positions import position_table
from nmt.models.transformer.Layers import DecoderLayer, EncoderLayer
from nmt.models.transformer.Models import Decoder, Encoder, Transformer
from nmt.models.transformer.Modules import RotaryEncoding
from nmt.models.transformer.SubLayers import MultiHeadAttention
from nmt.recipe.model_options import ModelConfig

VERSION = "3.5.1"
INSTALL = f"pip install --no-deps --target FOLDER OpenNMT-py=={VERSION} ConfigArgParse pyonmttok rapidfuzz"
# Packages that its transforms of texts import, and nothing that is called here: empty ones do where there are none.
_OF_TEXTS = ("ahocorasick", "fasttext", "spacy")
_ACTIVATION = {"relu": "relu", "gelu": "gelu", "swiglu": "silu"}
_WORST = 1e-4  # that a log-probability may be apart, as sums are taken in another order
_ROTARY = -1  # in the place of a largest distance between words

Weights = dict[str, Tensor]
Translate = Callable[[list[list[int]], int], list[list[int]]]  # one batch, with at most so many tokens each


def translate_with(model: Model, folder: Path, *, beam: int, device: str) -> Translate:
    """What translates a batch by OpenNMT-py's beam search, the score over the length, with the weights of `model`.

    Raises an NmtError if it cannot be imported from the folder, cannot hold the model, or is another model then.
    """
    config, ours = model.recipe.model, model.model
    check(folder, config)
    onmt = library(folder)
    assert isinstance(ours, Transformer)
    with torch.inference_mode(False), torch.no_grad():
        peer = _filled(onmt, ours, config)
        prove(peer, ours)
    translator = onmt.translate.Translator(
        peer.to(device),
        {"tgt": _Vocabulary(ours.trg_word_prj.out_features), "decoder_start_token": "<s>"},
        gpu=0 if device == "cuda" else -1,
        beam_size=beam,
        n_best=1,
        max_length_ratio=0.0,  # no limit but that of each batch
        global_scorer=onmt.translate.GNMTGlobalScorer(1.0, 0.0, "avg", "none"),
        dump_beam="",
    )

    def translate(sources: list[list[int]], most: int) -> list[list[int]]:
        translator.max_length = most
        found = translator.translate_batch(_batch(sources, device), attn_debug=False)["predictions"]
        best = [hypotheses[0].tolist() for hypotheses in found]
        return [ids[: ids.index(EOS)] if EOS in ids else ids for ids in best]

    return translate


# -- whether it is there, and can hold a model -------------------------------------------------------------------------


def check(folder: Path, config: ModelConfig) -> None:
    """Raise an NmtError if the folder has no OpenNMT-py, or that has no place for such a model. Nothing is imported."""
    if not (folder / "onmt" / "__init__.py").is_file():
        raise MachineError(f"--onmt {folder}: no OpenNMT-py was installed into this folder: {INSTALL}")
    if found := list(obstacles(config)):
        raise RunError(f"OpenNMT-py has no place for {', '.join(found)}: leave --onmt out, or name another model.")


def obstacles(config: ModelConfig) -> Iterator[str]:
    """Options whose models OpenNMT-py has no modules for, each with its value."""
    if config.is_recurrent:
        yield f"model.architecture: {config.architecture}"
        return
    if config.norm != "pre":
        yield f"model.norm: {config.norm}"
    for name in ("lexical_attn", "prj_transform", "rotary_enc_attn", "qk_norm", "enc_conv"):
        if getattr(config, name):
            yield f"model.{name}"
    if config.ffn not in _ACTIVATION:
        yield f"model.ffn: {config.ffn}"
    for name in ("d_k", "d_v"):
        if getattr(config, name) not in (None, config.d_model // config.n_head):
            yield f"model.{name} other than model.d_model / model.n_head"


def library(folder: Path) -> Any:
    """The package of that folder, or a MachineError that says how to get it.

    The folder is looked at last, and only now: what else is in it is to stand before nothing of ours.
    """
    absent = [name for name in _OF_TEXTS if name not in sys.modules and importlib.util.find_spec(name) is None]
    sys.modules.update({name: ModuleType(name) for name in absent})
    place = str(folder.resolve())
    sys.path.append(place)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it calls torch by names of long ago
            import onmt
            import onmt.translate
    except (ImportError, AttributeError) as error:
        raise MachineError(f"--onmt {folder}: OpenNMT-py cannot be imported from there ({error}): {INSTALL}") from error
    finally:
        sys.path.remove(place)
        for name in absent:
            del sys.modules[name]
    if onmt.__version__ != VERSION:
        raise MachineError(f"--onmt {folder}: OpenNMT-py {onmt.__version__} was found, not {VERSION}: {INSTALL}")
    return onmt


class _Vocabulary:
    """What its search wants to know of the target vocabulary: how large it is, and the ids of control symbols."""

    def __init__(self, n: int) -> None:
        self._n = n

    def __len__(self) -> int:
        return self._n

    def lookup_token(self, token: str) -> int:
        """Its names of control symbols; of those that we have not, like <unk>, the id is no token's."""
        return {"<blank>": PAD, "<s>": BOS, "</s>": EOS}.get(token, self._n)


def _batch(sources: list[list[int]], device: str) -> dict[str, Tensor]:
    """Sentences as its encoder reads them: words of one feature each, (B, S, 1), and lengths (B,)."""
    src = pad(Ragged.of(sources), after=(EOS,)).unsqueeze(2)
    return {"src": src.to(device), "srclen": torch.tensor([len(ids) + 1 for ids in sources], device=device)}


# -- its model, and our weights in it ----------------------------------------------------------------------------------


def _filled(onmt: Any, model: Transformer, config: ModelConfig) -> Any:
    """Its model with our sizes and weights, on the CPU."""
    encoder, decoder = model.encoder, model.decoder

    def shared(n_kv_head: int | None) -> int:
        return n_kv_head if n_kv_head and n_kv_head != config.n_head else 0  # each its own

    common: dict[str, Any] = {
        "pos_ffn_activation_fn": _ACTIVATION[config.ffn],
        "add_qkvbias": config.attn_bias,
        "add_ffnbias": config.ffn_bias,
        "layer_norm": "standard" if config.norm_kind == "layer" else "rms",
        "norm_eps": 1e-6,
        "max_relative_positions": _ROTARY if config.position == "rotary" else 0,
        "relative_positions_buckets": 0,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "d_model": config.d_model,
        "heads": config.n_head,
        "d_ff": config.d_inner,
    }
    peer = onmt.models.NMTModel(
        onmt.encoders.TransformerEncoder(
            config.n_enc_layer,
            embeddings=_embeddings(onmt, encoder, encoder.src_word_emb),
            num_kv=shared(config.enc_n_kv_head or config.n_kv_head),
            **common,
        ),
        onmt.decoders.TransformerDecoder(
            config.n_dec_layer,
            copy_attn=False,
            self_attn_type="scaled-dot-flash",  # its default
            embeddings=_embeddings(onmt, decoder, decoder.trg_word_emb),
            aan_useffn=False,
            full_context_alignment=False,
            alignment_layer=-1,
            alignment_heads=0,
            num_kv=shared(config.n_kv_head),
            **common,
        ),
    )
    peer.generator = nn.Linear(config.d_model, model.trg_word_prj.out_features)
    # Part by part, since its models have a way of their own to load all of a checkpoint; strictly, as it leaves numbers
    # in memory what they are.
    peer.encoder.load_state_dict(_stack(encoder, "transformer"))
    peer.decoder.load_state_dict(_stack(decoder, "transformer_layers"))
    weight = model.trg_word_prj.weight * model.logit_scale
    peer.generator.load_state_dict({"weight": weight, "bias": weight.new_zeros(len(weight))})
    return peer.eval()


def _embeddings(onmt: Any, stack: Encoder | Decoder, words: nn.Embedding) -> Any:
    """Its embeddings, with a place for a table of our positions where they are added."""
    added = not isinstance(stack.position_enc, RotaryEncoding)
    found = onmt.modules.Embeddings(words.embedding_dim, words.num_embeddings, PAD, position_encoding=added)
    if added:
        found.make_embedding.pe.pe = position_table(stack.position_enc).unsqueeze(1)
    return found


def _stack(stack: Encoder | Decoder, layers: str) -> Weights:
    """All that the state dict of its encoder or decoder holds. layers: its name of the list of them."""
    words = (stack.src_word_emb if isinstance(stack, Encoder) else stack.trg_word_emb).weight * stack.emb_scale
    found, enter = _named("layer_norm", stack.layer_norm), "embeddings.make_embedding"
    if not isinstance(stack.position_enc, RotaryEncoding):
        words = words / words.size(1) ** 0.5  # by which it multiplies them where it adds positions
        found[f"{enter}.pe.pe"] = position_table(stack.position_enc).unsqueeze(1)
    found[f"{enter}.emb_luts.0.weight"] = words
    for n, layer in enumerate(stack.layer_stack):
        assert isinstance(layer, EncoderLayer | DecoderLayer)
        box = f"{layers}.{n}"
        found |= _attention(f"{box}.self_attn", layer.slf_attn)
        if isinstance(layer, DecoderLayer):
            found |= _named(f"{box}.layer_norm_1", layer.slf_attn.layer_norm)
            found |= _named(f"{box}.layer_norm_2", layer.enc_attn.layer_norm)
            found |= _attention(f"{box}.context_attn", layer.enc_attn)
        else:
            found |= _named(f"{box}.layer_norm", layer.slf_attn.layer_norm)
        found |= _named(f"{box}.feed_forward", layer.pos_ffn)  # where all names are the same
    return found


def _attention(box: str, attention: MultiHeadAttention) -> Weights:
    parts = {"query": attention.w_qs, "keys": attention.w_ks, "values": attention.w_vs}
    found = _named(f"{box}.final_linear", attention.fc)
    for name, linear in parts.items():
        found |= _named(f"{box}.linear_{name}", linear)
    return found


def _named(box: str, module: nn.Module) -> Weights:
    """What a module of ours holds, by the names that a module of theirs has for it."""
    return {f"{box}.{name}": tensor for name, tensor in module.state_dict().items()}


# -- the proof ---------------------------------------------------------------------------------------------------------


def prove(peer: Any, model: Transformer) -> None:
    """Raise RunError unless both, on the CPU, give the same log-probabilities for some sentences that were made up.

    They are decoded word by word, as its search does it, from sources of several lengths.
    """
    random = torch.Generator().manual_seed(1)

    def made_up(n: int, n_vocab: int) -> list[int]:
        found: list[int] = torch.randint(N_SPECIAL, n_vocab, (n,), generator=random).tolist()
        return found

    sources = [made_up(n, model.encoder.src_word_emb.num_embeddings) for n in (9, 5, 1)]
    trg = torch.tensor([[BOS, *made_up(7, model.trg_word_prj.out_features)] for _ in sources])
    batch = _batch(sources, "cpu")
    enc_output, last, src_len = peer.encoder(batch["src"], batch["srclen"])
    peer.decoder.init_state(batch["src"], enc_output, last)
    theirs = []
    for step in range(trg.size(1)):
        hidden, _ = peer.decoder(trg[:, step, None, None], enc_output, src_len=src_len, step=step)
        theirs.append(peer.generator(hidden).log_softmax(-1))
    logits = model(batch["src"].squeeze(2), trg)
    assert isinstance(logits, Tensor)
    worst = (logits.log_softmax(-1) - torch.cat(theirs, 1)).abs().max().item()
    if not worst <= _WORST:  # so that a NaN is no success
        raise RunError(
            f"OpenNMT-py with our weights is another model: log-probabilities are up to {worst:.1e} apart, where "
            f"rounding explains {_WORST:.0e}. Its speed would mean nothing: leave --onmt out."
        )
