"""Word alignments read off attention: the source subword of each target subword, then pairs of words. No model.

Read off the attention over the source while the translation was written, so it is a hint and no proof.
"""

from collections.abc import Sequence

from torch import Tensor

from nmt.languages import language_of
from nmt.recipe.options import Recipe

# Decoder layers whose mean is read. Of many layers the one before the last aligns best (Garg et al. 2019, "Jointly
# learning to align and translate with Transformer models"), of few the last; their mean is as good as either.
N_LAYER = 2


def subword_alignment(weights: Tensor, layer: int = 0, head: int = 0) -> list[int | None]:
    """The source subword that each target subword looked at most, counted from 0; None where there is none to look at.

    weights: (n_layer, n_head, T, S), the ends of both sides last, which count for nothing. layer, head: from 1, as
    decode.align_layer and align_head say.
    """
    layers = weights[layer - 1 : layer] if layer else weights[-N_LAYER:]
    seen = (layers[0, head - 1] if head else layers.mean((0, 1)))[:-1, :-1]  # (T, S)
    if not seen.size(1):
        return [None] * len(seen)
    found: list[int | None] = seen.argmax(-1).tolist()
    return found


def joined_alignment(pieces: Sequence[Sequence[int | None]], src_len: Sequence[int]) -> list[int | None]:
    """The alignment of a line from those of its pieces, in order, between which both sides have an end.

    src_len: source subwords of each piece, the end not counted.
    """
    found: list[int | None] = []
    start = 0
    for piece, n_src in zip(pieces, src_len, strict=True):
        if start:
            found.append(None)
        found += [None if origin is None else start + origin for origin in piece]
        start += n_src + 1
    return found


def aligns_characters(recipe: Recipe, trg_lang: str | None = None) -> tuple[bool, bool]:
    """Flags of source and target: True where characters are aligned and not words, as decode.align_units says.

    trg_lang: of a line that says so itself.
    """
    units, languages = recipe.decode.align_units, (recipe.data.src_lang, trg_lang or trg_lang_of(recipe))
    unspaced = (units == "auto" and language_of(lang).is_unspaced for lang in languages)
    src, trg = (units == "characters" or one for one in unspaced)
    return src, trg


def trg_lang_of(recipe: Recipe) -> str:
    """The language that lines are translated into, where they say nothing themselves."""
    return recipe.decode.trg_lang or recipe.data.trg_lang


def characters_note(recipe: Recipe) -> str | None:
    """Return a note where characters are aligned because a language has no spaces between words; None elsewhere."""
    languages = map(language_of, (recipe.data.src_lang, trg_lang_of(recipe)))
    names = [language.name for language in languages if language.is_unspaced]
    if not names or recipe.decode.align_units != "auto":
        return None
    return (
        f"word alignments: of {' and '.join(names)}, written without spaces, characters are counted from 0, white "
        "space aside (--decode.align_units words: what spaces set apart)"
    )


def words_of(pieces: Sequence[bytes], by_character: bool = False) -> list[list[int]]:
    """The words, or by_character the characters, that each piece of a text is part of, counted from 0: one as a rule,
    none for white space, as `str.split` sees it."""
    words: list[list[int]] = []  # of each byte
    n_word, inside = 0, False
    # A byte that is not UTF-8, which is written as U+FFFD, becomes one character here: part of a word as well.
    for character in b"".join(pieces).decode("utf-8", errors="surrogateescape"):
        if character.isspace():
            inside = False
        elif by_character or not inside:
            inside, n_word = True, n_word + 1
        width = len(character.encode("utf-8", errors="surrogateescape"))
        words.extend([[n_word - 1] if inside else []] * width)
    found, start = [], 0
    for piece in pieces:
        end = start + len(piece)
        found.append(sorted({word for of_byte in words[start:end] for word in of_byte}))
        start = end
    return found


def word_alignment(subwords: Sequence[int | None], src: Sequence[Sequence[int]], trg: Sequence[Sequence[int]]) -> str:
    """Pairs of words some of whose subwords belong together, as 0-0 1-2: source, target, sorted (the Pharaoh format).

    subwords: of each target subword, the source subword. src, trg: what `words_of` says of both sides.
    """
    pairs = {
        (i, j) for here, there in zip(trg, subwords, strict=True) if there is not None for j in here for i in src[there]
    }
    return " ".join(f"{i}-{j}" for i, j in sorted(pairs))
