"""Text to ids and back: the pieces of each side, and the three ids that mean something to the model.

Control symbols are no pieces of the tokenizer: its ids are shifted past them, so nothing in a text can become one.
All 256 bytes are pieces, so nothing is unknown. How pieces are written is in `letters.py`, how they are learnt in
`subword_kinds.py`.
"""

import base64
import copy
import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from nmt.data.letters import BYTE_IN_TEXT, ByteLetters, CharacterLetters, Speller, easy_words, normalised, units_of
from nmt.data.lines import write_lines
from nmt.data.placeholders import CHARACTERS, canonical_tag, kinds_of, names_of, shown
from nmt.data.subword_kinds import KINDS, PieceTable, SubwordsFile
from nmt.languages import language_of
from nmt.recipe.data_options import SubwordsConfig, patterns_of

PAD = 0
BOS = 1
EOS = 2
N_SPECIAL = 3

_SPECIAL_TEXT = ("<pad>", "<s>", "</s>")
# Words whose ids are kept, in number and in letters: enough for nearly all of a corpus, and some 100 MB at most.
_MOST_REMEMBERED = 400_000
LONGEST_REMEMBERED = 40
# A symbol that one of these touches is part of something else: digits, and letters of scripts written with spaces.
_LETTER = "[0-9A-Z_a-z\u00c0-\u1fff]"


class Codec:
    """The pieces of one side, and the two ways between text and ids.

    The ids: control symbols, pieces, symbols, placeholders, tags. No text becomes a placeholder or a tag.
    """

    def __init__(self, pieces: PieceTable, settings: SubwordsFile | None = None, tags: Sequence[str] = ()) -> None:
        """settings: those of all but the pieces. tags: control symbols that may stand before a text."""
        settings = settings or SubwordsFile()
        self.kind, self.normalize, self.whitespace = settings.kind, settings.normalize, settings.whitespace
        self.symbols, self.placeholders, self.tags = settings.symbols, settings.placeholders, tuple(tags)
        self.protects = (*kinds_of(settings.placeholders), *settings.patterns)
        self.characters = settings.characters
        self.letters = CharacterLetters(pieces.vocab) if self.characters else ByteLetters()
        self.given, self.merges, self.scores = pieces, pieces.merges, pieces.scores  # without symbols and placeholders
        self.speller: Speller | None = None  # cuts lines where the pieces are those of SentencePiece
        if self.kind == "sentencepiece":
            charsmap = base64.b64decode(pieces.charsmap)
            self.speller = Speller(pieces.vocab, pieces.scores, pieces.model, charsmap, squeeze=pieces.squeeze)
        self.vocab = [*pieces.vocab, *map(self.letters.piece, (*self.symbols, *map(shown, self.placeholders)))]
        self._tokenizer = Tokenizer(KINDS[self.kind].model(self.names()[: len(pieces.vocab)], pieces))
        self._tokenizer.pre_tokenizer = self.letters.pre_tokenizer
        self._bytes = list(map(self.letters.raw, self.vocab))
        self._first_placeholder = N_SPECIAL + len(pieces.vocab) + len(self.symbols)
        # What has been encoded; symbols and placeholders are no matter of the tokenizer.
        texts = [*self.symbols, *map(CHARACTERS.__getitem__, self.placeholders)]
        self._known = {text: [i] for i, text in enumerate(texts, N_SPECIAL + len(pieces.vocab))}
        longest_first = "|".join(map(re.escape, sorted(self.symbols, key=len, reverse=True)))
        found = [f"(?<!{_LETTER})(?:{longest_first})(?!{_LETTER})"] * bool(self.symbols) + texts[len(self.symbols) :]
        self._symbol = re.compile(f"({'|'.join(found)})") if found else None
        self._before: list[int] = []
        self.n_text = N_SPECIAL + len(self.vocab)  # translations are made of ids below; those from here on have no text
        self.size = self.n_text + len(tags)
        self.n_vocab = -(-self.size // 8) * 8

    def tagged(self, tags: Sequence[str]) -> "Codec":
        """A copy of the vocabulary whose `encode` puts these tags, which it must have, before every line."""
        other = copy.copy(self)
        other._before = self.tag_ids(tags)
        return other

    def tag_ids(self, tags: Sequence[str]) -> list[int]:
        """The ids of tags that the vocabulary has."""
        known = list(map(canonical_tag, self.tags))
        return [self.n_text + known.index(canonical_tag(tag)) for tag in tags]

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Ids of each line, without BOS and EOS; an empty line has one piece, the space put before every line."""
        if self.speller:
            found = [self._spelled(self.speller, line) for line in lines]
        else:
            known = self._known  # parts repeat, so most are encoded once
            parts = (self._parts(" " + line) for line in lines)
            found = [[i for part in its for i in known.get(part) or self._encoded(part)] for its in parts]
        return [[*self._before, *ids] for ids in found] if self._before else found

    def _spelled(self, speller: Speller, line: str) -> list[int]:
        """The ids of a line in the pieces of SentencePiece. A symbol is none of them, so what is between is encoded."""
        ids: list[int] = []
        for n, part in enumerate(self._at_symbols(speller.line(line))):
            ids += self._known[part] if n % 2 else [N_SPECIAL + i for i in speller.encode(part)]
        return ids

    def _parts(self, text: str) -> list[str]:
        """A text, with a space before it, as symbols and, between them, parts that can be encoded one by one."""
        if not self._symbol and (words := easy_words(text)):
            return words
        parts = list[str]()
        for n, part in enumerate(self._at_symbols(" " + self.normalised(text[1:]))):
            if part:
                parts += [part] if n % 2 else units_of(part)
        return parts

    def _encoded(self, part: str) -> list[int]:
        """The ids of one of these parts."""
        ids = [i + N_SPECIAL for i in self._tokenizer.encode(part, add_special_tokens=False).ids]
        if len(part) <= LONGEST_REMEMBERED and len(self._known) < _MOST_REMEMBERED:
            self._known[part] = ids
        return ids

    def _at_symbols(self, text: str) -> list[str]:
        """A text cut at its symbols, which have the odd places."""
        return self._symbol.split(text) if self._symbol else [text]

    def cut(self, raw: bytes) -> list[int]:
        """The ids that the bytes of one word are made of; symbols in it are not looked for."""
        if self.speller:
            return [i + N_SPECIAL for i in self.speller.cut(raw)]
        try:
            return [token.id + N_SPECIAL for token in self._tokenizer.model.tokenize(self.letters.word(raw))]
        except UnicodeDecodeError:  # part of a character
            return [self._bytes.index(raw[n : n + 1]) + N_SPECIAL for n in range(len(raw))]

    def names(self) -> list[str]:
        """The pieces by the names that the tokenizers library knows them by, all different."""
        return list(map(self.letters.name, self.vocab))

    def normalised(self, text: str) -> str:
        """The text as the model knows it."""
        if self.speller:
            return self.speller.normalised(text)
        return normalised(text, self.normalize, self.whitespace)

    def normalised_prefix(self, text: str) -> str:
        """The beginning of a text as the model knows it; white space at its ends counts, as one space."""
        found = self.normalised(text)
        if self.whitespace == "kept" or not found:
            return found
        return f"{' ' * text[0].isspace()}{found}{' ' * text[-1].isspace()}"

    def decode(self, ids: Sequence[int], items: Mapping[str, str] | None = None) -> str:
        """The text of ids; control symbols and the padding of the vocabulary have none. items: as for `raw`.

        Bytes that are not UTF-8, which only a model can put together, become U+FFFD.
        """
        found = self.raw(ids, items)
        raw = b"".join(_replaced(found) if self.characters else found)
        # Where several spaces become one, so do those before a text.
        return (raw.lstrip(b" ") if self.given.squeeze else raw.removeprefix(b" ")).decode("utf-8", errors="replace")

    def raw(self, ids: Sequence[int], items: Mapping[str, str] | None = None) -> list[bytes]:
        """The bytes behind each id, none behind control symbols and the padding of the vocabulary.

        items: what stands behind placeholders, by name, and nothing behind others; without it their names do.
        """
        found = [self._bytes[i - N_SPECIAL] if N_SPECIAL <= i < self.n_text else b"" for i in ids]
        if items is not None and self.placeholders:
            for place, i in enumerate(ids):
                if name := self.placeholder(i):
                    found[place] = items.get(name, "").encode("utf-8", errors="surrogatepass")
        return found

    def placeholder(self, i: int) -> str:
        """The name of the placeholder that an id is, "" if it is none."""
        return self.placeholders[i - self._first_placeholder] if self._first_placeholder <= i < self.n_text else ""

    def placeholder_ids(self) -> dict[str, int]:
        """The ids of the placeholders, by name."""
        return {name: i for i, name in enumerate(self.placeholders, self._first_placeholder)}

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """A readable text for each id, for pictures: a space shows as ▁, part of a character as its bytes <C3>."""
        return [self._piece(i) for i in ids]

    def _piece(self, i: int) -> str:
        if i < N_SPECIAL:
            return _SPECIAL_TEXT[i]
        if i >= self.n_text:
            return self.tags[i - self.n_text] if i < self.size else "<unused>"
        raw = self._bytes[i - N_SPECIAL]
        try:
            text = raw.decode("utf-8").replace(" ", "▁")
        except UnicodeDecodeError:
            text = ""
        return text if text.isprintable() and text else "".join(f"<{byte:02X}>" for byte in raw)


class Subwords:
    """The vocabularies of a language pair; src and trg are the same object when joint."""

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
        """Learn the pieces from words as `WordsOf` cuts them. tags: of the source side. protect: as data.protect."""
        placeholders, kind = names_of(protect), KINDS[config.kind]
        n_piece = config.vocab_size - N_SPECIAL - len(config.symbols) - len(placeholders)

        def learnt(words: Counter[str], n_piece: int) -> PieceTable:
            usable = {one: n for one, n in words.items() if one.isascii() or not BYTE_IN_TEXT.search(one)}
            return kind.learn(Counter(usable), n_piece)

        if config.joint:
            codecs = [learnt(src_words + trg_words, n_piece - len(tags))]
        else:
            codecs = [learnt(src_words, n_piece - len(tags)), learnt(trg_words, n_piece)]
        same: dict[str, Any] = {name: getattr(config, name) for name in ("normalize", "whitespace", "symbols", "joint")}
        items: dict[str, Any] = {"placeholders": placeholders, "patterns": patterns_of(protect), "tags": tuple(tags)}
        return cls(SubwordsFile(format=4, kind=kind.stored, codecs=codecs, **same, **items))

    def tagged(self, tags: Sequence[str]) -> "Subwords":
        """A copy of the vocabularies whose `src` puts these tags, which it must have, before every source."""
        other = copy.copy(self)
        other.src = self.src.tagged(tags)
        return other

    def by_side(self) -> dict[str, Codec]:
        """The vocabularies, one or two, and what people call them."""
        return {"joint": self.src} if self.joint else {"source": self.src, "target": self.trg}

    def save(self, path: Path | str) -> None:
        """Write the JSON file; its SHA-256 is `sha256`."""
        write_lines(path, [self.file.text()])

    @classmethod
    def load(cls, path: Path | str) -> "Subwords":
        """Read what `save` wrote; anything else is refused."""
        return cls(SubwordsFile.read(Path(path)))


def _replaced(pieces: Sequence[bytes]) -> Iterator[bytes]:
    """Pieces, and U+FFFD for each byte of a run that is not UTF-8, as the tokenizers library decodes it."""
    for is_part, run in itertools.groupby(pieces, lambda piece: len(piece) == 1 and piece >= b"\x80"):
        raw = b"".join(run)
        try:
            raw.decode("utf-8") if is_part else None
        except UnicodeDecodeError:
            raw = "\ufffd".encode() * len(raw)
        yield raw


# How the subwords serve the training pairs.
_RARE = (10, 100)  # pieces that occur fewer times are counted
_N_FREQUENT = 20
_SEEN_OFTEN = 20  # times that a piece of the vocabulary should occur in the corpus, on average


def large_vocabulary(n_vocab: int, n_token: int) -> str | None:
    """Return a note on a target vocabulary that is large for its corpus; None: it is not.

    n_vocab: pieces, control symbols counted. n_token: target tokens of the training pairs, EOS counted.
    """
    most = n_token // _SEEN_OFTEN
    if most >= n_vocab:
        return None
    advised = max((size for size in (500, 1000, 2000, 4000, 8000, 16000, 32000) if size <= most), default=500)
    return (
        f"the vocabulary is large for the corpus: {n_vocab:,} pieces, {n_token:,} target tokens, so a piece is seen "
        f"{n_token / n_vocab:.1f} times on average: try --vocab-size {advised}"
    )


class VocabularyUse:
    """Counts as pairs are encoded; eight bytes a piece of the vocabulary. Languages without spaces have no words."""

    def __init__(self, subwords: Subwords, langs: tuple[str, str]) -> None:
        self._joint = subwords.joint
        self._codecs = {"src": subwords.src, "trg": subwords.trg}
        self._has_words = {
            side: not language_of(lang).is_unspaced for side, lang in zip(self._codecs, langs, strict=True)
        }
        self._counts = {side: np.zeros(codec.size, np.int64) for side, codec in self._codecs.items()}
        self._n_word, self._n_character = Counter[str](), Counter[str]()

    def add(self, side: str, n_word: int, n_character: int, counts: NDArray[np.integer[Any]]) -> None:
        """Some lines of a side: what they have, and how often each id is in them."""
        self._n_word[side] += n_word
        self._n_character[side] += n_character
        self._counts[side] += counts

    def as_dict(self) -> dict[str, Any]:
        """For JSON, by side; a joint vocabulary also as a whole."""
        found: dict[str, dict[str, Any]] = {"src": {}, "trg": {}}
        for side, codec in self._codecs.items():
            n_word, n_character, n_piece = self._n_word[side], self._n_character[side], int(self._counts[side].sum())
            if self._has_words[side]:
                found[side] = {"words": n_word, "pieces_per_word": round(n_piece / max(n_word, 1), 3)}
            per_piece = round(n_character / max(n_piece, 1), 3)
            found[side] |= {"characters": n_character, "pieces": n_piece, "characters_per_piece": per_piece}
            found[side] |= _coverage(codec, self._counts[side])
        if self._joint:
            found["joint"] = _coverage(self._codecs["src"], self._counts["src"] + self._counts["trg"])
        return found


def _coverage(codec: Codec, counts: Any) -> dict[str, Any]:
    own = counts[N_SPECIAL:]
    frequent = [i for i in np.argsort(-own, kind="stable")[:_N_FREQUENT].tolist() if own[i]]
    return {
        "size": len(own),
        "occur": int((own > 0).sum()),
        "fewer_than": {str(n): int((own < n).sum()) for n in _RARE},
        "most_frequent": [[codec.pieces([i + N_SPECIAL])[0], int(own[i])] for i in frequent],
    }
