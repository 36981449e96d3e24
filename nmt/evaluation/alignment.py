"""Word alignments from attention weights: the source subword of each target subword, then pairs of words. No model.

The weights are those of the cross-attention while the translation was written, so an alignment is a hint, not a proof.
"""

from collections.abc import Sequence
from itertools import islice

from torch import Tensor

from nmt.languages import language_of
from nmt.recipe.options import Recipe

# Last decoder layers to average. In a deep decoder the layer before the last aligns best (Garg et al. 2019, "Jointly
# learning to align and translate with Transformer models"), in a shallow one the last; their mean is as good as either.
N_LAYER = 2


def subword_alignment(weights: Tensor, layer: int = 0, head: int = 0) -> list[int | None]:
    """Return, for each target subword, the source subword with the most attention, from 0; None for an empty source.

    weights: (n_layer, n_head, T, S), with EOS last on both sides, which is ignored. layer, head: counted from 1, as
    decode.align_layer and align_head are; 0 for their mean.
    """
    layers = weights[layer - 1 : layer] if layer else weights[-N_LAYER:]
    attention = (layers[0, head - 1] if head else layers.mean((0, 1)))[:-1, :-1]  # (T, S) without EOS
    if not attention.size(1):
        return [None] * len(attention)
    alignment: list[int | None] = attention.argmax(-1).tolist()
    return alignment


def joined_alignment(pieces: Sequence[Sequence[int | None]], src_len: Sequence[int]) -> list[int | None]:
    """Join the alignments of the pieces of a line. Both sides of the line have an EOS between two pieces. src_len:
    source subwords of each piece, without EOS."""
    alignment: list[int | None] = []
    start = 0
    for piece, n_src in zip(pieces, src_len, strict=True):
        if start:
            alignment.append(None)
        alignment += [None if origin is None else start + origin for origin in piece]
        start += n_src + 1
    return alignment


def aligns_characters(recipe: Recipe, trg_lang: str | None = None) -> tuple[bool, bool]:
    """Return a flag for source and target: True if characters are aligned, not words, by decode.align_units. trg_lang:
    target language of the line, if it differs from the recipe's."""
    units, langs = recipe.decode.align_units, (recipe.data.src_lang, trg_lang or trg_lang_of(recipe))
    src, trg = (units == "characters" or (units == "auto" and language_of(lang).is_unspaced) for lang in langs)
    return src, trg


def trg_lang_of(recipe: Recipe) -> str:
    """Return the target language of lines that set none themselves."""
    return recipe.decode.trg_lang or recipe.data.trg_lang


def characters_note(recipe: Recipe) -> str | None:
    """Return a note if characters are aligned because a language has no spaces between words; else None."""
    languages = map(language_of, (recipe.data.src_lang, trg_lang_of(recipe)))
    names = [language.name for language in languages if language.is_unspaced]
    if not names or recipe.decode.align_units != "auto":
        return None
    return (
        f"word alignments: for {' and '.join(names)}, written without spaces, characters are numbered from 0, without "
        "white space (--decode.align_units words: parts between spaces)"
    )


def words_of(pieces: Sequence[bytes], by_character: bool = False) -> list[list[int]]:
    """Return, for each piece of a text, the numbers from 0 of the words that it is part of. Most pieces have one; white
    space, in the sense of `str.split`, has none. by_character: count characters, not words."""
    word_of_byte: list[int | None] = []
    n_word, in_word = 0, False
    # A byte that is not UTF-8, which is written as U+FFFD, counts as one character here, and so as part of a word.
    for character in b"".join(pieces).decode("utf-8", errors="surrogateescape"):
        if character.isspace():
            in_word = False
        elif by_character or not in_word:
            in_word, n_word = True, n_word + 1
        width = len(character.encode("utf-8", errors="surrogateescape"))
        word_of_byte += [n_word - 1 if in_word else None] * width
    words = iter(word_of_byte)
    return [sorted({word for word in islice(words, len(piece)) if word is not None}) for piece in pieces]


def word_alignment(subwords: Sequence[int | None], src: Sequence[Sequence[int]], trg: Sequence[Sequence[int]]) -> str:
    """Return the pairs of words with aligned subwords, as 0-0 1-2: source, target, sorted (the Pharaoh format).

    subwords: the source subword of each target subword. src, trg: the words of each subword, by `words_of`.
    """
    aligned = ((words, origin) for words, origin in zip(trg, subwords, strict=True) if origin is not None)
    pairs = {(i, j) for words, origin in aligned for j in words for i in src[origin]}
    return " ".join(f"{i}-{j}" for i, j in sorted(pairs))
