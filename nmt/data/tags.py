"""Tags: what a model is told of a source beside its text, as control symbols before it.

`<2fr>` says into which language to translate (Johnson et al. 2017, "Google's multilingual neural machine translation
system"), `<bt>` and the like from what kind of corpus a pair is, as tagged back-translation does (Caswell et al. 2019).
They are ids of the source vocabulary that no text can become.
"""

from nmt.data.placeholders import names_of
from nmt.data.text import split_of
from nmt.errors import RecipeError
from nmt.languages import language_of
from nmt.recipe.data_options import SMALLEST, DataConfig, SubwordsConfig, Tagged
from nmt.recipe.decode_options import DecodeConfig


def language_tag(lang: str) -> str:
    """Return the tag of a target language."""
    return f"<2{lang}>"


def told_language(tag: str) -> str | None:
    """The language that a tag says, None if it says something else: no other begins with a digit."""
    return tag.removeprefix("<2").removesuffix(">") if tag.startswith("<2") else None


def alike(tag: str) -> str:
    """The tag as it is made now: vocabularies may have that of a language by another code of it."""
    lang = told_language(tag)
    return tag if lang is None else language_tag(language_of(lang).code)


def tags_of(pairs: Tagged, data: DataConfig) -> tuple[str, ...]:
    """The tags of a corpus or a validation or test set; first, if a recipe has several, that of its target language."""
    languages = {corpus.trg_lang or data.trg_lang for corpus in data.train}
    of_language = (language_tag(pairs.trg_lang or data.trg_lang),) if len(languages) > 1 else ()
    return (*of_language, *(f"<{tag}>" for tag in pairs.tags))


def known_tags(data: DataConfig) -> tuple[str, ...]:
    """All tags that a model of this recipe learns, in a fixed order."""
    return tuple(sorted({tag for corpus in data.train for tag in tags_of(corpus, data)}))


def must_have_room(data: DataConfig, subwords: SubwordsConfig) -> None:
    """Raises RecipeError if a vocabulary that is to be learnt has no room for its tags beside what it always has."""
    tags = known_tags(data)
    least = SMALLEST + len(subwords.symbols) + len(names_of(data.protect)) + len(tags)
    if tags and not subwords.vocab_from and subwords.vocab_size < least:
        raise RecipeError(
            f"subwords.vocab_size: {subwords.vocab_size} has no room for the {len(tags)} tags of the training corpora "
            f"beside 256 bytes, control symbols and placeholders (make it {least} or more)."
        )


def held_out_tags(data: DataConfig) -> dict[str, tuple[str, ...]]:
    """The tags of the validation sets and of the test set, by their splits.

    Raises RecipeError for tags that no training corpus has.
    """
    known = known_tags(data)
    named: list[tuple[str, str, Tagged]] = [("data.valid", split_of(files.name), files) for files in data.valid]
    named += [("data.test", "test", data.test)] if data.test else []
    for option, _, files in named:
        if unknown := [tag for tag in tags_of(files, data) if tag not in known]:
            raise RecipeError(
                f"{option}: {unknown[0]} is told by trg_lang or tags, but no training corpus has it: a model would not "
                f"know what it means (there are {', '.join(known) or 'none'})."
            )
    return {split: tags_of(files, data) for _, split, files in named}


def tags_of_splits(data: DataConfig) -> dict[str, list[list[str]]]:
    """All tags of a recipe by split, a list for each corpus; empty if there is none."""
    training = [list(tags_of(corpus, data)) for corpus in data.train]
    held_out = {split: [list(tags)] for split, tags in held_out_tags(data).items()}
    return {"train": training, **held_out} if any(training) else {}


class Tagging:
    """Tags to put before a line: that of the language that it asks for, or else decode.trg_lang or the usual one,
    and its tags, or else decode.tags.

    known: those of the model's vocabulary. learnt: those that it was trained with. It may know more, from the run that
    its vocabulary is of: such a tag stands before a line where somebody asks for it.
    Raises RecipeError for what it does not know; where nobody says into which of several languages, not before a line
    leaves it open.
    """

    def __init__(self, decode: DecodeConfig, known: tuple[str, ...], usual_lang: str, learnt: tuple[str, ...]) -> None:
        self._decode, self._known, self._usual_lang = decode, known, language_of(usual_lang).code
        self._languages = [language_of(lang).code for tag in known if (lang := told_language(tag))]
        self._is_told = any(map(told_language, learnt))
        if not self._is_told and self._usual_lang not in self._languages:
            self._languages.insert(0, self._usual_lang)
        self._of_all = tuple(decode.tags)
        self._check_tags(self._of_all, "decode.tags")
        if decode.trg_lang:
            self()

    def __call__(self, trg_lang: str | None = None, tags: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """The tags of a line. trg_lang, tags: what it says of itself, None where it says nothing."""
        asked_for = trg_lang or self._decode.trg_lang
        lang = language_of(asked_for).code if asked_for else self._usual_lang
        if lang not in self._languages:
            asked = f"{lang}, but" if asked_for else "not given, and"
            where, how = ("", "") if trg_lang else ("decode.", " with --trg-lang")
            raise RecipeError(
                f"{where}trg_lang: {asked} the model translates into {', '.join(self._languages)}: choose one of "
                f"those{how}."
            )
        if tags is not None:
            self._check_tags(tags, "tags")
        of_language = language_tag(lang)
        more = (f"<{tag}>" for tag in (self._of_all if tags is None else tags))
        # A model for one language was trained without its tag, though its vocabulary may be that of a run for several.
        is_before = of_language in map(alike, self._known) and (self._is_told or lang != self._usual_lang)
        return (*([of_language] if is_before else []), *more)

    def _check_tags(self, tags: tuple[str, ...], name: str) -> None:
        if unknown := [tag for tag in tags if f"<{tag}>" not in self._known or tag.startswith("2")]:
            others = ", ".join(tag[1:-1] for tag in self._known if not told_language(tag))
            raise RecipeError(
                f"{name}: {unknown[0]} is no tag that the model was trained with (it knows {others or 'none'})."
            )
