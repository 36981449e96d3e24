"""Our subwords as a tokenizer of Hugging Face's transformers: the same ids for the same text, and back."""

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors

from nmt.data.text.whitespace import DROPPED, SPACES
from nmt.data.vocabulary.subwords import BOS, EOS, N_SPECIAL, PAD, Codec
from nmt.decoding.long_lines import MAX_SRC_LEN


def make_tokenizer(transformers: Any, codec: Codec) -> Any:
    """A fast tokenizer, which ends every text with EOS and never finds a control symbol in one."""
    pad, bos, eos = names = _control_names(codec)
    tokenizer = Tokenizer(_bpe(codec, names))
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


def _bpe(codec: Codec, names: list[str]) -> Any:
    """The pieces with their ids, the control symbols before them: no merge makes those, so no text does."""
    vocab = {name: i for i, name in enumerate([*names, *codec.names(), *codec.tags])}
    assert vocab[names[EOS]] == EOS and len(vocab) == codec.size
    return models.BPE(vocab, codec.merges, byte_fallback=codec.characters, ignore_merges=codec.kind == "word")


def _control_names(codec: Codec) -> list[str]:
    """Names of control symbols, by their ids. One that a piece has gets a space, which no piece of text ends with."""
    usual, taken = {PAD: "<pad>", BOS: "<s>", EOS: "</s>"}, set(codec.names())
    return [f"{usual[i]} " if usual[i] in taken else usual[i] for i in range(N_SPECIAL)]
