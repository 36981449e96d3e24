"""Placeholders that a model reads and writes in place of items of a text; and tags, control symbols before a source.

In text for the model a placeholder is one character, half of a surrogate pair. UTF-8 has no such characters, so no text
that was read has one, and the API refuses them. Users see the name of a placeholder, like ⟨url1⟩. Placeholders have the
numbers of the items in the source, so a translation may have them in another order.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from nmt.data.text import split_of
from nmt.errors import RecipeError
from nmt.languages import language_of
from nmt.recipe.data_options import KINDS, PATTERN, PER_KIND, DataConfig, Kind, kind_of, language_tag, patterns_of
from nmt.recipe.decode_options import DecodeConfig

# Items of a text that are the same in all languages.
# Digits, and letters of scripts with spaces between words. A number or symbol beside one is part of something longer.
IN_WORD = "0-9A-Z_a-z\u00c0-\u1fff"
# Characters that end a URL: white space, quotes, and the marks and letters of scripts without spaces.
_NOT_IN_URL = '\\s<>"«»“”„‘’\u3000-\u30ff\u3400-\u9fff\uac00-\ud7ff\uff00-\uffef'
_UNITS = (
    "km/h m/s kWh MWh GWh kbit/s Mbit/s Gbit/s km² cm² mm² m² cm³ m³ kHz MHz GHz Hz hPa kPa MPa kV mV mA kW MW GW "
    "kB KB MB GB TB km cm mm µm μm nm kg mg µg μg ml cl ha dB px min ms m g t l s h V W A"
)
_SPACE = " \u00a0\u202f"
# Numbers of digits only: decimal and thousands separators depend on the language.
_NUMBER = (
    rf"(?<![{IN_WORD}.,'’:])(?<![0-9][{_SPACE}])[0-9]+(?![.,'’:{_SPACE}]?[0-9])"
    rf"(?:[{_SPACE}]?(?:{_UNITS.replace(' ', '|')})(?![{IN_WORD}²³/]))?(?![{IN_WORD}])"
)
# Top-level domains of addresses without a protocol. Lower case only, since a sentence after a full stop has a capital.
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
    """Yield kind and text of each item, from left to right. Items do not overlap: text inside a tag is part of the tag.

    kinds: of data.protect, patterns included. If a pattern and a kind match at the same place, the pattern wins.
    """
    return ((match.lastgroup or PATTERN, match[0]) for match in _pattern(tuple(kinds)).finditer(text) if match[0])


@lru_cache
def _pattern(kinds: tuple[str, ...]) -> re.Pattern[str]:
    """Return the expression for items. It may match the empty string if a pattern of the user does."""
    user_patterns = "|".join(f"(?:{pattern[1:-1]})" for pattern in patterns_of(kinds))
    groups = [f"(?P<{PATTERN}>{user_patterns})"] * bool(user_patterns)
    groups += [f"(?P<{kind}>{PATTERNS[kind]})" for kind in KINDS if kind in kinds]
    return re.compile("|".join(groups) or "(?!)")


# One character for each number of each kind, more than are used. A vocabulary lists the names of its placeholders.
_N_RESERVED = 64
_ALL_KINDS: tuple[str, ...] = (*KINDS, PATTERN)
CHARACTERS = {
    f"{kind}{n}": chr(0xD800 + k * _N_RESERVED + n - 1)
    for k, kind in enumerate(_ALL_KINDS)
    for n in range(1, _N_RESERVED + 1)
}
_NAME_OF = {letter: name for name, letter in CHARACTERS.items()}
PLACEHOLDER = "[\ud800-\udbff]"  # part of a regular expression

# Encoding of text that may have placeholders as bytes, for internal use only.
BYTES = {"encoding": "utf-8", "errors": "surrogatepass"}

Items = dict[str, str]  # text of each placeholder, by name


def names_of(kinds: Iterable[str]) -> tuple[str, ...]:
    """Return the names of all placeholders for kinds and patterns of data.protect: url1, url2, …"""
    wanted = set(map(kind_of, kinds))
    return tuple(f"{kind}{n}" for kind in _ALL_KINDS if kind in wanted for n in range(1, PER_KIND + 1))


def kinds_of(names: Sequence[str]) -> tuple[Kind, ...]:
    """Return the kinds of placeholders, without patterns."""
    return tuple(kind for kind in KINDS if f"{kind}1" in names)


def _kind(name: str) -> str:
    return name.rstrip("0123456789")


def shown(name: str) -> str:
    """Return a placeholder as users see it."""
    return f"⟨{name}⟩"


def in_names(text: str) -> str:
    """Return a text with the names of its placeholders, for users."""
    return restored(text, {name: shown(name) for name in CHARACTERS})


def protected(text: str, kinds: Sequence[str]) -> tuple[str, Items]:
    """Replace the items of a text by placeholders. Returns the new text, and the items.

    The first PER_KIND items of each kind are replaced. `restored` undoes this.
    """
    count, items = Counter[str](), Items()
    for kind, item in items_in(text, kinds):
        count[kind] += 1
        if count[kind] <= PER_KIND:
            items[f"{kind}{count[kind]}"] = item
    return protected_like(text, items, kinds) if items else text, items


def protected_like(text: str, items: Mapping[str, str], kinds: Sequence[str]) -> str:
    """Replace items of a text, such as a translation, by placeholders of its source. Each is used once at most.

    items: the items of the source. Other items stay as they are.
    """
    names: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, item in items.items():
        names[_kind(name), item].append(name)

    def replace(match: re.Match[str]) -> str:
        unused = names.get((match.lastgroup or PATTERN, match[0]))
        return CHARACTERS[unused.pop(0)] if unused else match[0]

    return _pattern(tuple(kinds)).sub(replace, text)


def protected_pair(src: str, trg: str, kinds: Sequence[str]) -> tuple[str, str, bool]:
    """Return both sides of a pair with placeholders, or unchanged if their items differ; and True if they agree.

    Items agree if both sides have the same ones, each equally often.
    """
    src_items, trg_items = (Counter(items_in(text, kinds)) for text in (src, trg))
    if src_items != trg_items or not src_items:
        return src, trg, src_items == trg_items
    text, items = protected(src, kinds)
    return text, protected_like(trg, items, kinds), True


def restored(text: str, items: Mapping[str, str]) -> str:
    """Return the text with the items in place of their placeholders. Placeholders without an item are removed."""
    return re.sub(PLACEHOLDER, lambda match: items.get(_NAME_OF.get(match[0], ""), ""), text)


def renumbered(text: str, items: Mapping[str, str]) -> tuple[str, Items]:
    """Return a part of a text as if it had been protected separately: numbers from 1 in each kind, no other items."""
    count, new_items, table = Counter[str](), Items(), dict[int, str]()
    for letter in text:
        if name := _NAME_OF.get(letter):
            count[_kind(name)] += 1
            new_name = f"{_kind(name)}{count[_kind(name)]}"
            new_items[new_name], table[ord(letter)] = items[name], CHARACTERS[new_name]
    return text.translate(table), new_items


def came_back(
    source: str, written: Sequence[str], text: str, items: Mapping[str, str], kinds: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return the items of a source that are missing in its translation, and the surplus items of the translation.

    source: the original text. written: names of the placeholders in the translation. text: the translation without
    placeholders, in which the model may have written an item letter by letter.
    """
    expected = Counter(item for _, item in items_in(source, kinds))
    actual = Counter(items.get(name, shown(name)) for name in written)
    actual += Counter(item for _, item in items_in(text, kinds) if item in expected)
    return sorted((expected - actual).elements()), sorted((actual - expected).elements())


# Tags: control symbols before a source.
def tag_language(tag: str) -> str | None:
    """Return the language of a language tag, <2de>; None for any other tag, since no other begins with a digit."""
    return tag.removeprefix("<2").removesuffix(">") if tag.startswith("<2") else None


def held_out_tags(data: DataConfig) -> dict[str, tuple[str, ...]]:
    """Return the tags of each validation set and of the test set, by split."""
    tags = {split_of(files.name): data.tags_of(files) for files in data.valid}
    return tags | ({"test": data.tags_of(data.test)} if data.test else {})


class Tagging:
    """Choice of the tags before a line: a language tag, then the tags of the line or else decode.tags.

    The language is that of the line, or else decode.trg_lang, or else default_lang. known: tags of the model's
    vocabulary. learnt: tags that it was trained with. A vocabulary from another run may have more tags; they are used
    only on request. Raises RecipeError for unknown tags, and for a line without a language if there are several.
    """

    def __init__(self, decode: DecodeConfig, known: Sequence[str], default_lang: str, learnt: Sequence[str]) -> None:
        self._decode, self._known, self._default_lang = decode, known, language_of(default_lang).code
        self._languages = [lang for tag in known if (lang := tag_language(tag))]
        self._has_language_tags = any(map(tag_language, learnt))
        if not self._has_language_tags and self._default_lang not in self._languages:
            self._languages.insert(0, self._default_lang)
        if decode.trg_lang or decode.tags:  # refused before the first line if unknown
            self(decode.trg_lang or next(iter(self._languages), None))

    def __call__(self, trg_lang: str | None = None, tags: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """Return the tags of a line. trg_lang, tags: given with the line, None if not given."""
        requested = trg_lang or self._decode.trg_lang
        lang = language_of(requested).code if requested else self._default_lang
        if lang not in self._languages:
            found = f"{lang}, but" if requested else "not given, and"
            known, flag = ", ".join(self._languages), "" if requested else " (--trg-lang)"
            raise RecipeError(f"trg_lang: {found} the model translates into {known}: choose one of them{flag}.")
        line_tags = self._decode.tags if tags is None else tags
        if unknown := [tag for tag in line_tags if f"<{tag}>" not in self._known or tag.startswith("2")]:
            known = ", ".join(tag[1:-1] for tag in self._known if not tag_language(tag)) or "none"
            raise RecipeError(f"tags: the model was not trained with the tag {unknown[0]} (it knows {known}).")
        # A model for one language is trained without a language tag, even if its vocabulary has one.
        is_tagged = self._has_language_tags or lang != self._default_lang
        return (*[language_tag(lang)] * is_tagged, *(f"<{tag}>" for tag in line_tags))
