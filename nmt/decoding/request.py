"""Constraints of one line: prefix, required and avoided phrases, kept parts, target language and tags."""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from operator import attrgetter

from nmt.data.placeholders import CHARACTERS, protected, protected_like, renumbered, restored
from nmt.data.subwords import Codec
from nmt.decoding.phrases import Room, Wanted, barred_around, contains, occurrences
from nmt.errors import DataError, shown

Places = tuple[tuple[int, int], ...]  # beginnings and ends in a source as it was given, in characters

LONGEST_PHRASE = 1000  # characters: a search looks for each by a table that grows with it

_LATIN = re.compile(r"[0-9A-Z_a-z]{2}")  # within a word or a number
_LINE_END = re.compile(r"[\n\r]")


@dataclass(frozen=True, slots=True)
class Kept:
    """A part of a source that stays as it is in the translation."""

    text: str
    start: int  # its place in the source as it was given, in characters
    end: int
    # Whether a letter or its own edge stands before it, and after it, in the source: only then that may here.
    opened: tuple[bool, bool] = (False, False)


@dataclass(frozen=True, slots=True)
class Request:
    """A line to translate, and what its translation has to be like.

    required, avoided and tags may be any sequence of texts. Raises DataError for what is no text or no such sequence,
    and for phrases and a prefix that no line of text can have.
    """

    source: str
    prefix: str = ""  # it begins with this text, which may end within a word
    required: tuple[str, ...] = ()  # it contains each of these phrases, as words
    avoided: tuple[str, ...] = ()  # and none of these
    # Where in the source stand the phrases that each required one goes with; () where nobody knows.
    origins: tuple[Places, ...] = ()
    items: tuple[tuple[str, str], ...] = ()  # what placeholders in the source stand for, by name: a translator's affair
    trg_lang: str | None = None  # the language to translate into; None: as decode.trg_lang says
    tags: tuple[str, ...] | None = None  # what else the model is told of the line; None: as decode.tags says
    kept: tuple[Kept, ...] = ()  # it contains each of these parts of the source, in their order there, as often

    def __post_init__(self) -> None:
        def mind(name: str, wanted: str, is_so: bool, found: object, more: str = ".") -> None:
            if not is_so:
                raise DataError(f"{name}: expected {wanted}, found {shown(found)} of type {type(found).__name__}{more}")

        mind("source", "a text", isinstance(self.source, str), self.source)
        mind("prefix", "a text", isinstance(self.prefix, str), self.prefix)
        for name in ("required", "avoided", "tags"):
            texts = getattr(self, name)
            if texts is None and name == "tags":
                continue
            # One text is a sequence as well, of letters.
            mind(name, "a list of texts", not isinstance(texts, str | bytes), texts, ": put it in a list.")
            mind(name, "a list of texts", isinstance(texts, Sequence), texts)
            for one in texts:
                mind(name, "a list of texts", isinstance(one, str), one, " in it.")
            object.__setattr__(self, name, tuple(texts))  # which can be looked up, and does not change
        if len(set(self.tags or ())) < len(self.tags or ()):
            raise DataError(f"tags: one occurs twice, {list(self.tags or ())}. Name each once.")
        is_code = self.trg_lang is None or (isinstance(self.trg_lang, str) and self.trg_lang != "")
        mind("trg_lang", "the code of a language", is_code, self.trg_lang)
        if _LINE_END.search(self.prefix):
            raise DataError(f"{self.prefix!r} is no prefix: no translation has a line feed or a carriage return.")
        for phrase in (*self.required, *self.avoided):
            if not phrase or phrase != phrase.strip() or _LINE_END.search(phrase) or len(phrase) > LONGEST_PHRASE:
                raise DataError(
                    f"{phrase[:40]!r} is no phrase: one has text, at most {LONGEST_PHRASE:,} characters, no line feed "
                    "or carriage return, and no white space around it."
                )

    @property
    def asks(self) -> bool:
        """True where the translation has any constraint."""
        return bool(self.prefix or self.requires or self.avoided)

    @property
    def requires(self) -> bool:
        """True where the translation has to contain anything."""
        return bool(self.required or self.kept)

    @property
    def wanted(self) -> list[Wanted]:
        """Phrases that the translation has to contain, and how often."""
        n_kept = Counter(one.text for one in self.kept)
        opened = [{one.text for one in self.kept if one.opened[side]} for side in (0, 1)]
        found = [Wanted(phrase) for phrase in self.required]
        for text in n_kept:
            room = (text not in opened[0], text not in opened[1])
            # It may stand within something else that is kept, and then once is not enough for both.
            found.append(Wanted(text, sum(n * _count(text, whole, room) for whole, n in n_kept.items()), room))
        return found

    @property
    def can_be_split(self) -> bool:
        """True where the place in the source of each required phrase is known."""
        return len(self.origins) == len(self.required)

    def of_piece(self, piece: str, start: int, is_first: bool) -> "Request":
        """Return the request of a piece of the source. start: its first character in the source as it was given."""
        source, items = renumbered(piece, dict(self.items))
        end = start + len(restored(piece, dict(self.items)))
        # Where nobody knows the origins, a line that is too long for one piece lacks what it requires, and is flagged.
        here = {}
        for phrase, places in zip(self.required, self.origins, strict=True) if self.can_be_split else ():
            if inside := tuple((at - start, to - start) for at, to in places if start <= at and to <= end):
                here[phrase] = inside
        kept = [one for one in self.kept if start <= one.start and one.end <= end]
        return replace(
            self,
            source=source,
            prefix=self.prefix if is_first else "",
            required=tuple(here),
            origins=tuple(here.values()),
            items=tuple(items.items()),
            kept=tuple(replace(one, start=one.start - start, end=one.end - start) for one in kept),
        )

    def protected(self, kinds: Sequence[str]) -> "Request":
        """The request with placeholders for the items of its source."""
        source, items = protected(self.source, kinds)
        return replace(self, source=source, items=tuple(items.items()))

    def in_placeholders(self, kinds: Sequence[str]) -> "Request":
        """Return the request for a translation before items are put back in it: what stands within an item is there
        when the item is."""
        items = dict(self.items)
        if not items or not self.asks:
            return self

        def written(phrase: str) -> str:
            found = protected_like(phrase, items, kinds)
            inside = (CHARACTERS[name] for name, text in items.items() if phrase in text)
            return found if found != phrase else next(inside, phrase)

        avoided = [*self.avoided, *(protected_like(phrase, items, kinds) for phrase in self.avoided)]
        ends = list(accumulate(len(restored(letter, items)) for letter in self.source))
        kept = dict[tuple[int, int], Kept]()  # of what stands within one item, that item once
        for one in self.kept:
            start, end = bisect_right(ends, one.start), bisect_left(ends, one.end) + 1
            kept[start, end] = Kept(self.source[start:end], start, end, barred_around(self.source, start, end))
        return replace(
            self,
            prefix=protected_like(self.prefix, items, kinds),
            required=tuple(dict.fromkeys(map(written, self.required))),
            avoided=tuple(dict.fromkeys(avoided)),
            origins=(),
            kept=tuple(kept.values()),
        )

    def normalised(self, codec: Codec) -> "Request":
        """The request with what it asks for in the letters that a model writes."""
        required, avoided = (tuple(map(codec.normalised, phrases)) for phrases in (self.required, self.avoided))
        kept = tuple(replace(one, text=codec.normalised(one.text)) for one in self.kept)
        prefix = codec.normalised_prefix(self.prefix)
        return replace(self, prefix=prefix, required=required, avoided=avoided, kept=kept)

    def unmet(self, text: str) -> list[str]:
        """List the constraints that a translation does not fulfil."""
        begins = [] if text.startswith(self.prefix) else [self.prefix]
        lacking = [one.phrase for one in self.wanted if _count(one.phrase, text, one.room) < one.times]
        return begins + lacking + [phrase for phrase in self.avoided if contains(text, phrase)]


# Fields that users give, in Python and as keys of JSON lines; the others follow from them.
GIVEN = tuple(one.name for one in fields(Request) if one.name not in ("origins", "items", "kept"))


def _count(phrase: str, text: str, room: Room | None) -> int:
    return sum(1 for _ in occurrences(phrase, text, room))


def is_blank(line: str) -> bool:
    """Return whether a line has white space, control and format characters of any script only."""
    return all(letter.isspace() or unicodedata.category(letter) in ("Cc", "Cf") for letter in line)


class Terms:
    """Phrases that go with phrases of the source: pairs of both, required and avoided ("" for any source). kept: what
    it matches in the source stays."""

    def __init__(
        self,
        required: Iterable[tuple[str, str]] = (),
        avoided: Iterable[tuple[str, str]] = (),
        kept: re.Pattern[str] | None = None,
    ) -> None:
        # Longer phrases first, so that what is within them is not taken for a phrase of its own.
        self._required = sorted(required, key=lambda pair: -len(pair[0]))
        self._avoided, self._kept = list(avoided), kept

    def __call__(self, request: Request) -> Request:
        """The request with the phrases that its source asks for."""
        source = request.source
        found: list[tuple[tuple[int, int], str]] = []
        for phrase, translation in self._required:
            for start, end in occurrences(phrase, source):
                if all(end <= other or start >= beyond for (other, beyond), _ in found):
                    found.append(((start, end), translation))
        new = dict[str, Places]()
        for place, phrase in sorted(found):
            if phrase not in request.required:
                new[phrase] = (*new.get(phrase, ()), place)
        avoided = [phrase for where, phrase in self._avoided if not where or contains(source, where)]
        kept = _parts(source, self._kept) if self._kept else ()
        return replace(
            request,
            required=(*request.required, *new),
            avoided=tuple(dict.fromkeys([*request.avoided, *avoided])),
            origins=(*request.origins, *new.values()) if request.can_be_split else (),
            kept=tuple(sorted((*request.kept, *kept), key=attrgetter("start"))),
        )


def _parts(source: str, pattern: re.Pattern[str]) -> Iterator[Kept]:
    """Find the matches of a pattern in a source, without white space around, and with the part of a word before: A380
    is a name. What comes after may become another ending: 1990er is 1990s."""
    end = 0
    for found in pattern.finditer(source):
        if text := found.group().strip():
            start, taken = source.index(text, found.start()), end
            end = start + len(text)
            while start > taken and _LATIN.fullmatch(source, start - 1, start + 1):
                start -= 1
            yield Kept(source[start:end], start, end, barred_around(source, start, end))


# What a line says of itself, (trg_lang, tags) of a request -> the tags to put before it. Raises RecipeError.
TagsOf = Callable[[str | None, tuple[str, ...] | None], tuple[str, ...]]


class Sources:
    """Encodes the sources of requests.

    codec: puts the tags before every line where no tags_of is given; then lines may say nothing of themselves.
    """

    def __init__(self, codec: Codec, tags_of: TagsOf | None = None) -> None:
        self._codec, self._tags_of = codec, tags_of
        self._tagged: dict[tuple[str | None, tuple[str, ...] | None], Codec] = {}

    def codec_of(self, request: Request) -> Codec:
        """Return the codec of this source. Raises RecipeError for tags that the model has not learnt."""
        own = request.trg_lang, request.tags
        if own not in self._tagged:
            self._tagged[own] = self._codec.tagged(self._tags_of(*own)) if self._tags_of else self._codec
        return self._tagged[own]

    def encode(self, request: Request) -> list[int]:
        """Ids of the source of a request, without EOS."""
        return self.codec_of(request).encode([request.source])[0]
