"""Text to ids and back: the pieces of each side, and the three control symbols.

Control symbols are no pieces of the tokenizer: its ids are shifted past them, so no text can become one. All 256 bytes
are pieces, so no text is unknown. `letters.py` defines the spelling of pieces; `subword_kinds.py` learns them.
"""

import copy
import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from nmt.data.arrays import Ints
from nmt.data.letters import easy_words, in_words, learnable, normalised, raw_of
from nmt.data.lines import write_lines
from nmt.data.placeholders import CHARACTERS, IN_WORD, kinds_of, names_of
from nmt.data.subword_kinds import KINDS, PieceTable, Speller, SubwordsFile
from nmt.data.text import SIDES
from nmt.languages import language_of
from nmt.recipe.data_options import SubwordsConfig, patterns_of

PAD = 0
BOS = 1
EOS = 2
N_SPECIAL = 3

SPECIAL_TEXT = ("<pad>", "<s>", "</s>")
# Limits of the cache of encoded words: enough for nearly all words of a corpus, and some 100 MB at most.
_MOST_REMEMBERED = 400_000  # words
_LONGEST_REMEMBERED = 40  # characters of a word


class Codec:
    """The vocabulary of one side: encodes text to ids and decodes ids to text.

    The order of the ids: control symbols, pieces, symbols, placeholders, tags. No text becomes a placeholder or a tag.
    """

    def __init__(self, pieces: PieceTable, settings: SubwordsFile | None = None, tags: Sequence[str] = ()) -> None:
        """settings: everything but the pieces. tags: control symbols that may stand before a text."""
        settings = settings or SubwordsFile()
        self.kind, self.normalize, self.whitespace = settings.kind, settings.normalize, settings.whitespace
        self.symbols, self.placeholders, self.tags = settings.symbols, settings.placeholders, tuple(tags)
        self.protects = (*kinds_of(settings.placeholders), *settings.patterns)
        self.table, self.merges, self.scores = pieces, pieces.merges, pieces.scores  # without symbols and placeholders
        # Segments lines if the pieces are those of SentencePiece.
        self.speller = Speller(pieces.model) if self.kind == "sentencepiece" else None
        self.vocab = [*pieces.vocab, *settings.extra_texts]
        self._tokenizer = Tokenizer(KINDS[self.kind].model(pieces))
        self._tokenizer.pre_tokenizer = in_words()
        self._bytes = list(map(raw_of, self.vocab))
        self.first_symbol = N_SPECIAL + len(pieces.vocab)  # symbols, placeholders and tags have ids from here on
        # Names of the placeholders, by id.
        self.placeholder_of = dict(enumerate(self.placeholders, self.first_symbol + len(self.symbols)))
        # Ids of encoded parts. Symbols and placeholders are in it from the start, as the tokenizer does not know them.
        reserved = [CHARACTERS[name] for name in self.placeholders]
        self._cache = {text: [i] for i, text in enumerate((*self.symbols, *reserved), self.first_symbol)}
        longest_first = "|".join(map(re.escape, sorted(self.symbols, key=len, reverse=True)))
        patterns = [f"(?<![{IN_WORD}])(?:{longest_first})(?![{IN_WORD}])"] * bool(self.symbols) + reserved
        self._symbol = re.compile(f"({'|'.join(patterns)})") if patterns else None
        self.prefix: list[int] = []  # ids that `encode` puts before every line
        self.n_text = N_SPECIAL + len(self.vocab)  # translations consist of smaller ids; larger ones have no text
        self.size = self.n_text + len(tags)
        self.n_vocab = -(-self.size // 8) * 8

    def tagged(self, tags: Sequence[str]) -> "Codec":
        """A copy of the vocabulary whose `encode` puts these tags before every line. It must have them."""
        tagged = copy.copy(self)
        tagged.prefix = self.tag_ids(tags)
        return tagged

    def tag_ids(self, tags: Sequence[str]) -> list[int]:
        """The ids of tags of the vocabulary."""
        return [self.n_text + self.tags.index(tag) for tag in tags]

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Ids of each line, without BOS and EOS; an empty line has one piece, the space put before every line."""
        cache = self._cache  # parts repeat, so most are encoded once
        split = map(self._parts, lines)
        rows = [[i for part in parts for i in cache.get(part) or self.cut(part)] for parts in split]
        return [[*self.prefix, *ids] for ids in rows] if self.prefix else rows

    def _parts(self, line: str) -> list[str]:
        """Split a line, normalised and with a space before it, into symbols and parts that are encoded one by one."""
        if not self._symbol and not self.speller and (words := easy_words(" " + line)):
            return words
        text = self.speller.line(line) if self.speller else " " + self.normalised(line)
        parts = list[str]()
        for part in filter(None, self._symbol.split(text) if self._symbol else [text]):
            words = part[1:].split()
            # A piece begins at each single space between words. SentencePiece needs the whole text between two symbols.
            is_cut = words and part == f" {' '.join(words)}" and not self.speller
            parts += [f" {word}" for word in words] if is_cut else [part]
        return parts

    def cut(self, part: str) -> list[int]:
        """The ids of a part without symbols. It is cached, unless it may be a whole line, which hardly repeats."""
        if self.speller:
            return [i + N_SPECIAL for i in self.speller.encode(part)]
        ids = [i + N_SPECIAL for i in self._tokenizer.encode(part, add_special_tokens=False).ids]
        if len(part) <= _LONGEST_REMEMBERED and len(self._cache) < _MOST_REMEMBERED:
            self._cache[part] = ids
        return ids

    def normalised(self, text: str) -> str:
        """The text after normalisation, as the model sees it."""
        if self.speller:
            return self.speller.normalised(text)
        return normalised(text, self.normalize, self.whitespace)

    def normalised_prefix(self, text: str) -> str:
        """The beginning of a text after normalisation; white space at its ends becomes one space."""
        prefix = self.normalised(text)
        if self.whitespace == "kept" or not prefix:
            return prefix
        return f"{' ' * text[0].isspace()}{prefix}{' ' * text[-1].isspace()}"

    def decode(self, ids: Sequence[int], items: Mapping[str, str] | None = None) -> str:
        """The text of ids; control symbols and the padding of the vocabulary have none. items: as for `raw`.

        Bytes that are not UTF-8 become U+FFFD. Only ids chosen by a model can contain such bytes.
        """
        pieces = self.raw(ids, items)
        raw = b"".join(pieces if self.speller else _replace_invalid(pieces))
        # If several spaces become one, those before a text are all removed.
        is_squeezed = self.speller and self.speller.squeeze
        return (raw.lstrip(b" ") if is_squeezed else raw.removeprefix(b" ")).decode("utf-8", errors="replace")

    def raw(self, ids: Sequence[int], items: Mapping[str, str] | None = None) -> list[bytes]:
        """The bytes of each id; control symbols and the padding of the vocabulary have none.

        items: replacements of placeholders, by name; other placeholders get none. None: placeholders keep their names.
        """
        pieces = [self._bytes[i - N_SPECIAL] if N_SPECIAL <= i < self.n_text else b"" for i in ids]
        if items is not None and self.placeholders:
            for place, i in enumerate(ids):
                if name := self.placeholder_of.get(i):
                    pieces[place] = items.get(name, "").encode("utf-8", errors="surrogatepass")
        return pieces

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """A readable text of each id, for figures: a space shows as ▁, part of a character as its bytes <C3>."""
        return [self._piece(i) for i in ids]

    def _piece(self, i: int) -> str:
        if i < N_SPECIAL:
            return SPECIAL_TEXT[i]
        if i >= self.n_text:
            return self.tags[i - self.n_text] if i < self.size else "<unused>"
        raw = self._bytes[i - N_SPECIAL]
        text = raw.decode("utf-8", errors="surrogateescape").replace(" ", "▁")  # a part of a character is not printable
        return text if text.isprintable() else "".join(f"<{byte:02X}>" for byte in raw)


class Subwords:
    """The vocabularies of a language pair. If joint, src and trg are the same object."""

    def __init__(self, file: SubwordsFile) -> None:
        self.file, self.joint, self.normalize = file, file.joint, file.normalize
        self.src = Codec(file.codecs[0], file, file.tags)
        self.trg = self.src if file.joint else Codec(file.codecs[1], file)
        self.sha256 = hashlib.sha256(file.text().encode("utf-8") + b"\n").hexdigest()

    @classmethod
    def train(
        cls,
        src_words: Counter[str],
        trg_words: Counter[str],
        config: SubwordsConfig,
        tags: Sequence[str] = (),
        protect: Sequence[str] = (),
    ) -> "Subwords":
        """Learn the pieces from words as `WordsOf` splits them. tags: of the source side. protect: as data.protect."""
        placeholders, kind = names_of(protect), KINDS[config.kind]
        n_piece = config.vocab_size - N_SPECIAL - len(config.symbols) - len(placeholders)
        sides = [src_words + trg_words] if config.joint else [src_words, trg_words]
        sizes = n_piece - len(tags), n_piece  # only the source side has tags
        codecs = [kind.learn(learnable(words), size) for words, size in zip(sides, sizes, strict=False)]
        same: dict[str, Any] = {name: getattr(config, name) for name in ("normalize", "whitespace", "symbols", "joint")}
        items: dict[str, Any] = {"placeholders": placeholders, "patterns": patterns_of(protect), "tags": tuple(tags)}
        return cls(SubwordsFile(format=4, kind=kind.stored, codecs=codecs, **same, **items))

    def tagged(self, tags: Sequence[str]) -> "Subwords":
        """A copy of the vocabularies whose `src` puts these tags before every source. It must have them."""
        tagged = copy.copy(self)
        tagged.src = self.src.tagged(tags)
        return tagged

    def by_side(self) -> dict[str, Codec]:
        """The vocabularies, one or two, by name for output."""
        return {"joint": self.src} if self.joint else {"source": self.src, "target": self.trg}

    def save(self, path: Path | str) -> None:
        """Write the JSON file; its SHA-256 is `sha256`."""
        write_lines(path, [self.file.text()])

    @classmethod
    def load(cls, path: Path | str) -> "Subwords":
        """Read a file that `save` wrote. Raises DataError for any other file."""
        return cls(SubwordsFile.read(Path(path)))


def _replace_invalid(pieces: Sequence[bytes]) -> Iterator[bytes]:
    """Yield pieces, and U+FFFD for each byte of a run of bytes that is not UTF-8, as the tokenizers library does."""
    for is_byte, run in itertools.groupby(pieces, lambda piece: len(piece) == 1 and piece >= b"\x80"):
        raw = b"".join(run)
        try:
            raw.decode("utf-8") if is_byte else None
        except UnicodeDecodeError:
            raw = "\ufffd".encode() * len(raw)
        yield raw


# Use of the vocabulary by the training pairs.
_RARE = (10, 100)  # the report counts pieces that occur fewer times
_MIN_MEAN_COUNT = 20  # times that a piece of the vocabulary should occur in the corpus, on average


def large_vocabulary(n_vocab: int, n_token: int) -> str | None:
    """Return a note if a target vocabulary is too large for its corpus, else None.

    n_vocab: pieces, control symbols counted. n_token: target tokens of the training pairs, EOS counted.
    """
    max_size = n_token // _MIN_MEAN_COUNT
    if max_size >= n_vocab:
        return None
    advised = max((size for size in (500, 1000, 2000, 4000, 8000, 16000, 32000) if size <= max_size), default=500)
    return (
        f"the vocabulary is large for the corpus: {n_vocab:,} pieces, {n_token:,} target tokens, so a piece is seen "
        f"{n_token / n_vocab:.1f} times on average" + (f": try --vocab-size {advised}" if advised < n_vocab else "")
    )


def vocabulary_use(
    subwords: Subwords, langs: tuple[str, str], totals: Mapping[str, tuple[int, int, Ints]]
) -> dict[str, Any]:
    """Entries for report.json, by side; of a joint vocabulary also as a whole.

    totals: words, characters, and occurrences of each id. Words are not counted in languages without spaces.
    """
    facts = dict[str, dict[str, Any]]()
    for side, lang in zip(SIDES, langs, strict=True):
        n_word, n_character, counts = totals[side]
        n_piece = int(counts.sum())
        words = {"words": n_word, "pieces_per_word": round(n_piece / max(n_word, 1), 3)}
        per_piece = round(n_character / max(n_piece, 1), 3)
        pieces = {"characters": n_character, "pieces": n_piece, "characters_per_piece": per_piece}
        facts[side] = (words if not language_of(lang).is_unspaced else {}) | pieces | _coverage(counts)
    if subwords.joint:
        facts["joint"] = _coverage(totals["src"][2] + totals["trg"][2])
    return facts


def _coverage(counts: Ints) -> dict[str, Any]:
    counts = counts[N_SPECIAL:]  # without control symbols
    return {
        "size": len(counts),
        "occur": int((counts > 0).sum()),
        "fewer_than": {str(n): int((counts < n).sum()) for n in _RARE},
    }
