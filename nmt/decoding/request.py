"""Request to translate one line: source, prefix, required and avoided phrases, kept parts, target language, tags."""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from operator import attrgetter

from nmt.data.placeholders import CHARACTERS, protected, protected_like, renumbered, restored
from nmt.data.subwords import Codec
from nmt.decoding.phrases import Boundaries, RequiredPhrase, attached_sides, contains, occurrences
from nmt.errors import DataError, described

Spans = tuple[tuple[int, int], ...]  # starts and ends in a source as it was given, in characters

LONGEST_PHRASE = 1000  # characters: the table of a search grows with the phrase

_LATIN = re.compile(r"[0-9A-Z_a-z]{2}")  # within a word or a number
_LINE_END = re.compile(r"[\n\r]")


@dataclass(frozen=True, slots=True)
class Kept:
    """A part of a source that the translation contains unchanged."""

    text: str
    start: int  # its span in the source as it was given, in characters
    end: int
    # `attached_sides` in the source. On these sides it may be attached in the translation, too.
    opened: tuple[bool, bool] = (False, False)  # this name is in the digests of journals


@dataclass(frozen=True, slots=True)
class Request:
    """A line to translate, and the constraints of its translation.

    required, avoided and tags may be any sequence of texts. Raises DataError for a field of another type, and for a
    prefix or a phrase that no line can contain.
    """

    source: str
    prefix: str = ""  # the translation begins with this text, which may end within a word
    required: tuple[str, ...] = ()  # the translation contains each of these phrases, as words
    avoided: tuple[str, ...] = ()  # and none of these
    # For each required phrase the spans of its terms in the source; () if unknown.
    origins: tuple[Spans, ...] = ()
    items: tuple[tuple[str, str], ...] = ()  # names and texts of the placeholders in the source; set by `Translator`
    trg_lang: str | None = None  # target language; None: decode.trg_lang
    tags: tuple[str, ...] | None = None  # further tags before the source; None: decode.tags
    kept: tuple[Kept, ...] = ()  # parts of the source, in order, that the translation contains as often

    def __post_init__(self) -> None:
        def check(name: str, expected: str, is_valid: bool) -> None:
            if not is_valid:
                raise DataError(f"{name}: expected {expected}, found {described(getattr(self, name))}.")

        check("source", "a text", isinstance(self.source, str))
        check("prefix", "a text", isinstance(self.prefix, str))
        is_code = self.trg_lang is None or (isinstance(self.trg_lang, str) and self.trg_lang != "")
        check("trg_lang", "a language code", is_code)
        for name in ("required", "avoided") if self.tags is None else ("required", "avoided", "tags"):
            texts = getattr(self, name)
            is_list = isinstance(texts, Sequence) and not isinstance(texts, str | bytes)  # a text is a sequence, too
            check(name, "a list of texts", is_list)
            if wrong := [text for text in texts if not isinstance(text, str)]:
                raise DataError(f"{name}: expected a list of texts, found {described(wrong[0])} in it.")
            object.__setattr__(self, name, tuple(texts))  # hashable and immutable
        if len(set(self.tags or ())) < len(self.tags or ()):
            raise DataError(f"tags: a tag occurs twice, {list(self.tags or ())}. Name each once.")
        if _LINE_END.search(self.prefix):
            raise DataError(f"{self.prefix!r} is not a prefix: no translation has a line feed or a carriage return.")
        for phrase in (*self.required, *self.avoided):
            if is_blank(phrase) or phrase != phrase.strip() or _LINE_END.search(phrase) or len(phrase) > LONGEST_PHRASE:
                raise DataError(
                    f"{phrase[:40]!r} is not a valid phrase: expected visible text of at most {LONGEST_PHRASE:,} "
                    "characters, without line feed, carriage return or white space around it."
                )

    @property
    def asks(self) -> bool:
        """Return whether the translation has any constraint."""
        return bool(self.prefix or self.requires or self.avoided)

    @property
    def requires(self) -> bool:
        """Return whether the translation has to contain any phrase."""
        return bool(self.required or self.kept)

    @property
    def required_phrases(self) -> list[RequiredPhrase]:
        """The required phrases and the kept parts, with their numbers of occurrences."""
        n_kept = Counter(part.text for part in self.kept)
        attached = [{part.text for part in self.kept if part.opened[side]} for side in (0, 1)]
        phrases = [RequiredPhrase(phrase) for phrase in self.required]
        for text in n_kept:
            boundaries = (text not in attached[0], text not in attached[1])
            # A kept part may contain another one: each needs its own occurrence.
            times = sum(n * _count(text, whole, boundaries) for whole, n in n_kept.items())
            phrases.append(RequiredPhrase(text, times, boundaries))
        return phrases

    @property
    def can_be_split(self) -> bool:
        """Return whether the origins of all required phrases are known."""
        return len(self.origins) == len(self.required)

    def of_piece(self, piece: str, start: int, is_first: bool) -> "Request":
        """Return the request of a piece of the source. start: its first character in the source as it was given."""
        source, items = renumbered(piece, dict(self.items))
        end = start + len(restored(piece, dict(self.items)))
        # If the origins are unknown, no piece gets a required phrase. The line misses them and is flagged.
        origins = {}
        for phrase, spans in zip(self.required, self.origins, strict=True) if self.can_be_split else ():
            inside = tuple((begin - start, stop - start) for begin, stop in spans if start <= begin and stop <= end)
            if inside:
                origins[phrase] = inside
        kept = [part for part in self.kept if start <= part.start and part.end <= end]
        return replace(
            self,
            source=source,
            prefix=self.prefix if is_first else "",
            required=tuple(origins),
            origins=tuple(origins.values()),
            items=tuple(items.items()),
            kept=tuple(replace(part, start=part.start - start, end=part.end - start) for part in kept),
        )

    def protected(self, kinds: Sequence[str]) -> "Request":
        """Return the request with placeholders for the items of its source."""
        source, items = protected(self.source, kinds)
        return replace(self, source=source, items=tuple(items.items()))

    def in_placeholders(self, kinds: Sequence[str]) -> "Request":
        """Return the request for a translation with placeholders. A phrase within an item becomes the placeholder of
        that item."""
        items = dict(self.items)
        if not items or not self.asks:
            return self

        def with_placeholders(phrase: str) -> str:
            protected_phrase = protected_like(phrase, items, kinds)
            placeholders = (CHARACTERS[name] for name, text in items.items() if phrase in text)
            return protected_phrase if protected_phrase != phrase else next(placeholders, phrase)

        avoided = [*self.avoided, *(protected_like(phrase, items, kinds) for phrase in self.avoided)]
        ends = list(accumulate(len(restored(letter, items)) for letter in self.source))
        kept = dict[tuple[int, int], Kept]()  # parts within the same item become that item, once
        for part in self.kept:
            start, end = bisect_right(ends, part.start), bisect_left(ends, part.end) + 1
            kept[start, end] = Kept(self.source[start:end], start, end, attached_sides(self.source, start, end))
        return replace(
            self,
            prefix=protected_like(self.prefix, items, kinds),
            required=tuple(dict.fromkeys(map(with_placeholders, self.required))),
            avoided=tuple(dict.fromkeys(avoided)),
            origins=(),
            kept=tuple(kept.values()),
        )

    def normalised(self, codec: Codec) -> "Request":
        """Return the request with its constraints in the letters that the model writes."""
        required, avoided = (tuple(map(codec.normalised, phrases)) for phrases in (self.required, self.avoided))
        # A part of invisible characters only has no text that the model could keep.
        kept = tuple(replace(part, text=text) for part in self.kept if (text := codec.normalised(part.text)))
        prefix = codec.normalised_prefix(self.prefix)
        return replace(self, prefix=prefix, required=required, avoided=avoided, kept=kept)

    def unmet(self, text: str) -> list[str]:
        """List the constraints that a translation violates."""
        unmet = [] if text.startswith(self.prefix) else [self.prefix]
        unmet += [phrase for phrase, times, sides in self.required_phrases if _count(phrase, text, sides) < times]
        return unmet + [phrase for phrase in self.avoided if contains(text, phrase)]


# Fields that users set, in Python and as keys of JSON lines. The others are computed.
GIVEN = tuple(field.name for field in fields(Request) if field.name not in ("origins", "items", "kept"))


def _count(phrase: str, text: str, boundaries: Boundaries | None) -> int:
    return sum(1 for _ in occurrences(phrase, text, boundaries))


def is_blank(line: str) -> bool:
    """Return whether a line has only white space, control and format characters, of any script."""
    return all(letter.isspace() or unicodedata.category(letter) in ("Cc", "Cf") for letter in line)


@dataclass(frozen=True)
class Terms:
    """Terminology: pairs of a source phrase and a phrase to require or to avoid ("" for any source). kept: its matches
    in the source stay unchanged."""

    required: Sequence[tuple[str, str]] = ()
    avoided: Sequence[tuple[str, str]] = ()
    kept: re.Pattern[str] | None = None

    def __call__(self, request: Request) -> Request:
        """Return the request with the phrases that go with its source."""
        source = request.source
        found = [(span, phrase) for term, phrase in self.required for span in occurrences(term, source)]
        matches: list[tuple[tuple[int, int], str]] = []
        # Longer ones first: a match within a longer one does not count.
        for (start, end), phrase in sorted(found, key=lambda match: match[0][0] - match[0][1]):
            if all(end <= other_start or start >= other_end for (other_start, other_end), _ in matches):
                matches.append(((start, end), phrase))
        origins = dict[str, Spans]()
        for span, phrase in sorted(matches):
            if phrase not in request.required:
                origins[phrase] = (*origins.get(phrase, ()), span)
        avoided = [phrase for term, phrase in self.avoided if not term or contains(source, term)]
        kept = _matches(source, self.kept) if self.kept else ()
        return replace(
            request,
            required=(*request.required, *origins),
            avoided=tuple(dict.fromkeys([*request.avoided, *avoided])),
            origins=(*request.origins, *origins.values()) if request.can_be_split else (),
            kept=tuple(sorted((*request.kept, *kept), key=attrgetter("start"))),
        )


def _matches(source: str, pattern: re.Pattern[str]) -> Iterator[Kept]:
    """Yield the matches of a pattern in a source, without white space around them, but extended to the beginning of
    their words: A380 is a name. The end of a word may change: 1990er is 1990s."""
    end = 0
    for match in pattern.finditer(source):
        if text := match.group().strip():
            start, previous_end = source.index(text, match.start()), end
            end = start + len(text)
            while start > previous_end and _LATIN.fullmatch(source, start - 1, start + 1):
                start -= 1
            yield Kept(source[start:end], start, end, attached_sides(source, start, end))
