"""Placeholders that a model reads and writes in place of items of a text, and tags, control symbols before a source.

Before the model a placeholder is one character, half of a surrogate pair. UTF-8 has no such characters, so no text that
was read can contain one, and none can be mistaken for one. People see its name, as ⟨url1⟩. The numbers are those of the
items in the source, so a translation may have them in another order.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from nmt.data.text import split_of
from nmt.errors import RecipeError
from nmt.languages import language_of
from nmt.recipe.data_options import (
    KINDS,
    PATTERN,
    PER_KIND,
    CorpusFiles,
    DataConfig,
    Kind,
    kind_of,
    language_tag,
    patterns_of,
)
from nmt.recipe.decode_options import DecodeConfig

# Items of a text that mean the same in any language and are written alike.
# Letters of scripts that are written with spaces: one that touches a number makes it part of something else.
_LETTER = "0-9A-Z_a-z\u00c0-\u1fff"
# Quotes, and the marks and letters of scripts without spaces, in which a URL ends where they begin.
_NOT_IN_URL = '\\s<>"«»“”„‘’\u3000-\u30ff\u3400-\u9fff\uac00-\ud7ff\uff00-\uffef'
_UNITS = (
    "km/h m/s kWh MWh GWh kbit/s Mbit/s Gbit/s km² cm² mm² m² cm³ m³ kHz MHz GHz Hz hPa kPa MPa kV mV mA kW MW GW "
    "kB KB MB GB TB km cm mm µm μm nm kg mg µg μg ml cl ha dB px min ms m g t l s h V W A"
)
_SPACE = " \u00a0\u202f"
# Digits alone: marks of decimals and of thousands are those of a language.
_NUMBER = (
    rf"(?<![{_LETTER}.,'’:])(?<![0-9][{_SPACE}])[0-9]+(?![.,'’:{_SPACE}]?[0-9])"
    rf"(?:[{_SPACE}]?(?:{_UNITS.replace(' ', '|')})(?![{_LETTER}²³/]))?(?![{_LETTER}])"
)
# Domains by which an address without a protocol is known, in small letters: a sentence after a full stop has capitals.
_DOMAINS = (
    "com|org|net|info|biz|edu|gov|mil|int|io|app|dev|ai|eu|uk|us|de|at|ch|fr|es|pt|nl|be|lu|ie|ca|au|nz|in|cn|jp|kr|tw|hk|"
    "sg|th|vn|br|mx|ar|cl|ru|ua|pl|cz|sk|hu|ro|bg|gr|tr|il|ir|sa|ae|eg|za|ng|ke|se|no|dk|fi|ee|lv|lt|hr|rs"
)
_FACE = "[\u203c\u2049\u2600-\u27bf\u2b50\u2b55\U0001f300-\U0001faff][\ufe0f\U0001f3fb-\U0001f3ff]{0,2}"
PATTERNS: dict[Kind, str] = {
    "tag": r"</?[A-Za-z][A-Za-z0-9:._-]{0,60}(?:\s[^<>]{0,500})?/?>",
    "url": rf"(?:https?|ftp)://[^{_NOT_IN_URL}]*[^{_NOT_IN_URL}.,;:!?)']",
    "email": r"(?<![A-Za-z0-9.+-])[\w.+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){0,8}\.[A-Za-z]{2,24}",
    "number": _NUMBER,
    "host": rf"(?<![\w@.-])(?:www(?:\.[A-Za-z0-9-]{{1,63}}){{1,7}}|(?:[A-Za-z0-9-]{{2,63}}\.){{1,6}}(?:{_DOMAINS})"
    rf"(?![\w-]|\.[A-Za-z]))(?:[/?#](?:[^{_NOT_IN_URL}]{{0,500}}[^{_NOT_IN_URL}.,;:!?)'])?)?",
    "mention": r"(?<![\w@#&/])[@#][^\W\d]\w{0,60}",
    "path": r"(?<![\w./~\\:<-])(?:(?:~|\.{1,2})?/(?:[\w.-]{1,80}/){1,20}[\w.-]{0,79}\w"
    r"|[A-Za-z]:\\(?:[\w.-]{1,80}\\){0,20}[\w.-]{0,79}\w)",
    "emoji": f"[\U0001f1e6-\U0001f1ff]{{2}}|{_FACE}(?:\u200d{_FACE}){{0,6}}",
}


def items_in(text: str, kinds: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The kinds and texts of items, from left to right; none overlaps another: what a tag contains is part of the tag.

    kinds: of data.protect, patterns among them, which win over kinds where both match.
    """
    return ((match.lastgroup or PATTERN, match[0]) for match in _pattern(tuple(kinds)).finditer(text) if match[0])


@lru_cache
def _pattern(kinds: tuple[str, ...]) -> re.Pattern[str]:
    """Expression for items; it may match where nothing stands, if a pattern of the user does."""
    own = "|".join(f"(?:{pattern[1:-1]})" for pattern in patterns_of(kinds))
    found = [f"(?P<{PATTERN}>{own})"] * bool(own)
    found += [f"(?P<{kind}>{PATTERNS[kind]})" for kind in KINDS if kind in kinds]
    return re.compile("|".join(found) or "(?!)")


# One character for the model for each number of each kind, more than are used; a vocabulary says by name which it has.
_MOST = 64
_ALL_KINDS: tuple[str, ...] = (*KINDS, PATTERN)
CHARACTERS = {
    f"{kind}{n}": chr(0xD800 + k * _MOST + n - 1) for k, kind in enumerate(_ALL_KINDS) for n in range(1, _MOST + 1)
}
_NAME_OF = {letter: name for name, letter in CHARACTERS.items()}
_NOTHING: dict[int, str] = dict.fromkeys(range(0xD800, 0xDC00), "")
PLACEHOLDER = "[\ud800-\udbff]"  # as a part of a pattern

# How text is made bytes, and text again, where there may be placeholders, for ourselves alone.
BYTES = {"encoding": "utf-8", "errors": "surrogatepass"}

Items = dict[str, str]  # the text that each placeholder stands for, by name


def names_of(kinds: Iterable[str]) -> tuple[str, ...]:
    """The names of all placeholders for kinds and patterns of data.protect: url1, url2, …"""
    there = set(map(kind_of, kinds))
    return tuple(f"{kind}{n}" for kind in _ALL_KINDS if kind in there for n in range(1, PER_KIND + 1))


def kinds_of(names: Iterable[str]) -> tuple[Kind, ...]:
    """The kinds that placeholders are of, patterns aside."""
    there = set(map(_kind, names))
    return tuple(kind for kind in KINDS if kind in there)


def _kind(name: str) -> str:
    return name.rstrip("0123456789")


def shown(name: str) -> str:
    """Return the text of a placeholder for people."""
    return f"⟨{name}⟩"


def in_names(text: str) -> str:
    """A text in which placeholders may stand, for people."""
    return restored(text, {name: shown(name) for name in CHARACTERS})


def protected(text: str, kinds: Sequence[str]) -> tuple[str, Items]:
    """The text with placeholders in place of its items, and what they stand for. The text itself if it has none.

    Of a kind the first PER_KIND are replaced. `restored` gives the text back.
    """
    count, items = Counter[str](), Items()

    def replaced(match: re.Match[str]) -> str:
        kind, text = match.lastgroup or PATTERN, match[0]
        count[kind] += bool(text)
        if not text or count[kind] > PER_KIND:
            return text
        items[f"{kind}{count[kind]}"] = text
        return CHARACTERS[f"{kind}{count[kind]}"]

    return _pattern(tuple(kinds)).sub(replaced, _clean(text)), items


def protected_like(text: str, items: Mapping[str, str], kinds: Sequence[str]) -> str:
    """A translation with the placeholders of its source where it has the same items, each once at most.

    items: what the placeholders of the source stand for. Other items stay as they are.
    """
    names: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, its in items.items():
        names[_kind(name), its].append(name)

    def replaced(match: re.Match[str]) -> str:
        free = names.get((match.lastgroup or PATTERN, match[0]))
        return CHARACTERS[free.pop(0)] if free else match[0]

    text = _clean(text)
    return _pattern(tuple(kinds)).sub(replaced, text) if items else text


def protected_pair(src: str, trg: str, kinds: Sequence[str]) -> tuple[str, str, bool]:
    """Both sides of a pair with placeholders if they have the same items, each as often, and as they stand if not.

    Also returns whether that was so.
    """
    here, there = (Counter(items_in(text, kinds)) for text in (src, trg))
    if here != there or not here:
        return src, trg, here == there
    text, items = protected(src, kinds)
    return text, protected_like(trg, items, kinds), True


def restored(text: str, items: Mapping[str, str]) -> str:
    """The text with the items in place of their placeholders; one that stands for nothing vanishes."""
    if text.isascii():
        return text
    return text.translate(_NOTHING | {ord(CHARACTERS[name]): its for name, its in items.items()})


def renumbered(text: str, items: Mapping[str, str]) -> tuple[str, Items]:
    """A part of a text as if it had been protected by itself: numbers from 1 in each kind, and no other items."""
    count, new, found = Counter[str](), Items(), dict[int, str]()
    for letter in text:
        if name := _NAME_OF.get(letter):
            count[_kind(name)] += 1
            again = f"{_kind(name)}{count[_kind(name)]}"
            new[again], found[ord(letter)] = items[name], CHARACTERS[again]
    return text.translate(found), new


def came_back(
    source: str, written: Sequence[str], text: str, items: Mapping[str, str], kinds: Sequence[str]
) -> tuple[list[str], list[str]]:
    """The items of a source that its translation lacks, and what it has more often than the source.

    source: as it was given. written: the names of the placeholders in the translation. text: the translation without
    them, in which the model may have written an item letter by letter.
    """
    wanted = Counter(item for _, item in items_in(source, kinds))
    there = Counter(items.get(name, shown(name)) for name in written)
    there += Counter(item for _, item in items_in(text, kinds) if item in wanted)
    return sorted((wanted - there).elements()), sorted((there - wanted).elements())


def _clean(text: str) -> str:
    """Halves of characters, which only a program can hand in, are no text."""
    return text if text.isascii() else text.encode("utf-8", errors="replace").decode("utf-8")


# Tags: control symbols before a source.
def told_language(tag: str) -> str | None:
    """The language that a tag says, None if it says something else: no other begins with a digit."""
    return tag.removeprefix("<2").removesuffix(">") if tag.startswith("<2") else None


def alike(tag: str) -> str:
    """The tag as it is made now: vocabularies may have that of a language by another code of it."""
    lang = told_language(tag)
    return tag if lang is None else language_tag(language_of(lang).code)


def held_out_tags(data: DataConfig) -> dict[str, tuple[str, ...]]:
    """The tags of the validation sets and of the test set, by their splits."""
    named: dict[str, CorpusFiles] = {split_of(files.name): files for files in data.valid}
    named |= {"test": data.test} if data.test else {}
    return {split: data.tags_of(files) for split, files in named.items()}


class Tagging:
    """Tags to put before a line: that of its language, or else of decode.trg_lang or the usual one; and its tags, or
    else decode.tags.

    known: those of the model's vocabulary. learnt: those that it was trained with. It may know more, from the run that
    its vocabulary is of: such a tag stands before a line where somebody asks for it. Raises RecipeError for what it
    does not know, and for a line without a language where there are several.
    """

    def __init__(self, decode: DecodeConfig, known: tuple[str, ...], usual_lang: str, learnt: tuple[str, ...]) -> None:
        self._decode, self._known, self._usual_lang = decode, known, language_of(usual_lang).code
        self._languages = [language_of(lang).code for tag in known if (lang := told_language(tag))]
        self._is_told = any(map(told_language, learnt))
        if not self._is_told and self._usual_lang not in self._languages:
            self._languages.insert(0, self._usual_lang)
        self._check_tags(decode.tags, "decode.tags")
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
        of_all = self._decode.tags if tags is None else tags
        # A model for one language was trained without its tag, though its vocabulary may be that of a run for several.
        is_before = language_tag(lang) in map(alike, self._known) and (self._is_told or lang != self._usual_lang)
        return (*[language_tag(lang)] * is_before, *(f"<{tag}>" for tag in of_all))

    def _check_tags(self, tags: Sequence[str], name: str) -> None:
        if unknown := [tag for tag in tags if f"<{tag}>" not in self._known or tag.startswith("2")]:
            others = ", ".join(tag[1:-1] for tag in self._known if not told_language(tag))
            raise RecipeError(
                f"{name}: {unknown[0]} is no tag that the model was trained with (it knows {others or 'none'})."
            )
