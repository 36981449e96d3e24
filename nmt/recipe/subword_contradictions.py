"""Options of subwords, placeholders and other ways to cut words that are each allowed, but not together."""

import unicodedata
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nmt.recipe.protect_options import PER_KIND, complaint_about_patterns, kind_of, patterns_of
from nmt.recipe.subword_options import SENTENCEPIECE_ENDINGS, SMALLEST

if TYPE_CHECKING:
    from nmt.recipe.data_options import DataConfig
    from nmt.recipe.options import Recipe
    from nmt.recipe.subword_options import SubwordsConfig


def find_subword_contradictions(recipe: "Recipe") -> Iterator[str]:
    """What in the options of subwords cannot be meant, as `contradictions.find_contradictions` says it."""
    yield from _of_subwords(recipe.subwords)
    yield from _of_protection(recipe.data, recipe.subwords)
    yield from _of_splitting(recipe)


def _of_subwords(subwords: "SubwordsConfig") -> Iterator[str]:
    symbols = subwords.symbols
    if twice := [symbol for symbol in dict.fromkeys(symbols) if symbols.count(symbol) > 1]:
        yield f"subwords.symbols: {', '.join(twice)} occurs twice (name each once)"
    for symbol in symbols:
        if complaint := complaint_about_symbol(symbol, subwords.normalize):
            yield f"subwords.symbols: {symbol!r} {complaint}"
    yield from _of_sentencepiece(subwords)
    if subwords.extend and not subwords.vocab_from:
        yield "subwords.extend: there is nothing to extend (name a run with subwords.vocab_from, or remove this)"
    if not subwords.vocab_from and subwords.vocab_size < SMALLEST + len(symbols):  # as many as without symbols
        yield (
            f"subwords.vocab_size: {subwords.vocab_size} has no room for the {len(symbols)} of subwords.symbols beside "
            f"256 bytes and the control symbols (make it {SMALLEST + len(symbols)} or more)"
        )


def _of_sentencepiece(subwords: "SubwordsConfig") -> Iterator[str]:
    names = subwords.vocab_names
    most = 1 if subwords.joint else 2
    if len(names) > most:
        why = "true" if subwords.joint else "false"
        yield f"subwords.vocab_from: {len(names)} models, but subwords.joint is {why} (name {most} at most)"
    if subwords.kind != "sentencepiece":
        if names[0].endswith(SENTENCEPIECE_ENDINGS):
            yield f"subwords.kind: {subwords.kind}, but subwords.vocab_from is a model of SentencePiece (sentencepiece)"
        return
    if not subwords.vocab_from:
        yield "subwords.kind: sentencepiece learns nothing (name its model file with subwords.vocab_from)"
    if subwords.extend:
        yield "subwords.extend: nothing can be added to pieces of subwords.kind: sentencepiece (remove it)"
    for name, is_usual in (
        ("normalize", subwords.normalize == "nfc"),
        ("whitespace", subwords.whitespace == "unified"),
    ):
        if not is_usual:
            yield f"subwords.{name}: has no say where subwords.kind: sentencepiece brings its own rules (remove it)"


def _of_protection(data: "DataConfig", subwords: "SubwordsConfig") -> Iterator[str]:
    kinds = set(map(kind_of, data.protect))
    if twice := [one for one in dict.fromkeys(data.protect) if data.protect.count(one) > 1]:
        yield f"data.protect: {', '.join(twice)} occurs twice (name each once)"
        return
    if complaint := complaint_about_patterns(patterns_of(data.protect)):
        yield f"data.protect: {complaint}"
    if named := [
        one for one in subwords.symbols if one in {f"⟨{kind}{n + 1}⟩" for kind in kinds for n in range(PER_KIND)}
    ]:
        yield f"subwords.symbols: {named[0]} is how a placeholder of data.protect is shown (choose another symbol)"
    least = SMALLEST + len(subwords.symbols) + PER_KIND * len(kinds)
    if kinds and not subwords.vocab_from and SMALLEST + len(subwords.symbols) <= subwords.vocab_size < least:
        yield (
            f"subwords.vocab_size: {subwords.vocab_size} has no room for the {PER_KIND * len(kinds)} placeholders of "
            f"data.protect (make it {least} or more)"
        )


def complaint_about_symbol(symbol: str, normalize: str) -> str | None:
    """Why a text can be no symbol of the subwords."""
    if len(symbol) < 2 or not symbol.isprintable() or any(map(str.isspace, symbol)):
        return "is no symbol (write two or more printable characters without white space)"
    if len(symbol.encode("utf-8")) > 64:
        return "is longer than 64 bytes (shorten it)"
    if symbol in ("<pad>", "<s>", "</s>"):
        return "is the name of a control symbol, which stays ordinary text in a text (choose another name)"
    if normalize != "none" and unicodedata.normalize("NFKC" if normalize == "nfkc" else "NFC", symbol) != symbol:
        return f"is changed by subwords.normalize: {normalize}, so it would never be found (write it as that does)"
    return None


def _of_splitting(recipe: "Recipe") -> Iterator[str]:
    batch, kind = recipe.batch, recipe.subwords.kind
    if batch.bpe_dropout and kind in ("unigram", "word", "sentencepiece"):
        yield f"batch.bpe_dropout: subwords.kind: {kind} has no merges to leave out (set this to 0)"
    if batch.unigram_alpha and kind != "unigram":
        yield f"batch.unigram_alpha: pieces of subwords.kind: {kind} have no probabilities (set this to 0)"
