"""Text to ids and back: byte-level BPE, and the three ids that mean something to the model.

Control symbols are no pieces of the tokenizer: its ids are shifted past them, so nothing in a text can become one.
All 256 bytes are pieces, so nothing is unknown: decoding gives back the (normalised) text, byte for byte.
"""

import hashlib
import json
import random
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from nmt.data.lines import write_lines
from nmt.errors import DataError
from nmt.recipe.subword_options import SubwordsConfig

PAD = 0
BOS = 1
EOS = 2
N_SPECIAL = 3

# A piece spans at most so many bytes: a text of more than n x so many bytes has more than n subwords.
LONGEST_PIECE = 64

_SPECIAL_TEXT = ("<pad>", "<s>", "</s>")
_FORMAT = 1
_KEYS = ("format", "normalize", "joint", "codecs")
_LARGEST_FILE = 1 << 28
# BPE looks at every symbol of a word for every merge in it: one endless word would take minutes. What is cut off
# here is only not learned from; encoding sees whole lines.
_LINE_CAP = 10_000
_ENDLESS = re.compile(r"\S{101}|\s{101}")
_PART = re.compile(r"\s{0,100}\S{1,100}|\s{1,100}")
# Words whose ids are kept, in number and in letters: enough for nearly all of a corpus, and some 100 MB at most.
_MOST_REMEMBERED = 400_000
_LONGEST_REMEMBERED = 40

Lines = Callable[[], Iterable[str]]


class Codec:
    """The pieces of one side, and the two ways between text and ids."""

    def __init__(self, vocab: Sequence[str], merges: Sequence[tuple[str, str]], normalize: str = "nfc") -> None:
        """vocab: pieces in the order of their ids, in the letters of the byte-level alphabet."""
        self.vocab, self.merges, self.normalize = list(vocab), list(merges), normalize
        self._tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(vocab)}, list(merges)))
        self._tokenizer.pre_tokenizer = _pre_tokenizer()
        self._known: dict[str, list[int]] = {}
        self._bytes = [bytes(_BYTE_OF[letter] for letter in piece) for piece in vocab]
        self.size = N_SPECIAL + len(vocab)
        self.n_vocab = -(-self.size // 8) * 8

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Ids of each line, without BOS and EOS; an empty line has one piece, the space put before every line.

        Words repeat, so each is encoded once: no piece reaches over a single space, which always begins one.
        """
        words_of = [_words(self.normalised(line)) for line in lines]
        known = self._known
        unknown = list(dict.fromkeys(word for words in words_of for word in words if word not in known))
        batch = self._tokenizer.encode_batch_fast([" " + word for word in unknown], add_special_tokens=False)
        new = {word: [i + N_SPECIAL for i in each.ids] for word, each in zip(unknown, batch, strict=True)}
        if len(known) < _MOST_REMEMBERED:
            known.update((word, ids) for word, ids in new.items() if len(word) <= _LONGEST_REMEMBERED)
        return [[i for word in words for i in (new.get(word) or known[word])] for words in words_of]

    def parts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(size,) and (size,) ids of the two pieces that each piece was merged from; -1 for those that were not."""
        id_of = {piece: i for i, piece in enumerate(self.vocab, N_SPECIAL)}
        left, right = np.full((2, self.size), -1, dtype=np.int64)
        for a, b in reversed(self.merges):  # where two merges make one piece, the first is the one that is applied
            left[id_of[a + b]], right[id_of[a + b]] = id_of[a], id_of[b]
        return left, right

    def normalised(self, text: str) -> str:
        """The text as the model knows it."""
        return normalised(text, self.normalize)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; control symbols and the padding of the vocabulary have none.

        Bytes that are not UTF-8, which only a model can put together, become U+FFFD.
        """
        return b"".join(self.raw(ids)).removeprefix(b" ").decode("utf-8", errors="replace")

    def raw(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes behind each id, none behind control symbols and the padding of the vocabulary."""
        return [self._bytes[i - N_SPECIAL] if N_SPECIAL <= i < self.size else b"" for i in ids]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """A readable text for each id, for pictures: a space shows as ▁, part of a character as its bytes <C3>."""
        return [self._piece(i) for i in ids]

    def _piece(self, i: int) -> str:
        if i < N_SPECIAL:
            return _SPECIAL_TEXT[i]
        if i >= self.size:
            return "<unused>"
        raw = self._bytes[i - N_SPECIAL]
        try:
            text = raw.decode("utf-8").replace(" ", "▁")
        except UnicodeDecodeError:
            text = ""
        return text if text.isprintable() and text else "".join(f"<{byte:02X}>" for byte in raw)


class Subwords:
    """The vocabularies of a language pair; src and trg are the same object when joint."""

    def __init__(self, src: Codec, trg: Codec, normalize: str) -> None:
        self.src, self.trg, self.normalize = src, trg, normalize
        self.joint = src is trg
        self.sha256 = hashlib.sha256(self._text().encode("utf-8") + b"\n").hexdigest()

    @classmethod
    def train(cls, src_lines: Lines, trg_lines: Lines, config: SubwordsConfig, seed: int) -> "Subwords":
        """Learn the merges. src_lines, trg_lines: give the lines anew at each call, without line feeds."""
        if config.joint:
            codec = _train((src_lines, trg_lines), config, seed)
            return cls(codec, codec, config.normalize)
        return cls(_train((src_lines,), config, seed), _train((trg_lines,), config, seed), config.normalize)

    def save(self, path: Path | str) -> None:
        """Write the JSON file; its SHA-256 is `sha256`."""
        write_lines(path, [self._text()])

    @classmethod
    def load(cls, path: Path | str) -> "Subwords":
        """Read what `save` wrote; anything else is refused."""
        path = Path(path)
        try:
            if path.stat().st_size > _LARGEST_FILE:
                raise DataError(f"{path}: {path.stat().st_size:,} bytes are too many for a vocabulary.")
            found = json.loads(path.read_bytes().decode("utf-8"))
        except OSError as error:
            raise DataError(f"{path}: cannot read the subwords ({error.strerror or error}).") from None
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: damaged subwords file ({error}). Run nmt-preprocess again.") from None
        if complaint := _complaint_about(found):
            raise DataError(f"{path}: not a subwords file of nmt: {complaint}. Run nmt-preprocess again.")
        codecs = [
            Codec(each["vocab"], [(a, b) for a, b in each["merges"]], found["normalize"]) for each in found["codecs"]
        ]
        return cls(codecs[0], codecs[-1], found["normalize"])

    def _text(self) -> str:
        codecs = [self.src] if self.joint else [self.src, self.trg]
        content = {
            "format": _FORMAT,
            "normalize": self.normalize,
            "joint": self.joint,
            "codecs": [{"vocab": codec.vocab, "merges": codec.merges} for codec in codecs],
        }
        return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def normalised(text: str, normalize: str) -> str:
    """The text as the model knows it."""
    return text if normalize == "none" or text.isascii() else unicodedata.normalize("NFC", text)


def _words(line: str) -> list[str]:
    """The line cut at its spaces, if white space in it is nothing but single spaces between words; else the line."""
    words = line.split()
    return words if words and " ".join(words) == line else [line]


def _train(sides: Sequence[Lines], config: SubwordsConfig, seed: int) -> Codec:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = _of_characters() if config.kind == "char" else _pre_tokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size - N_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        max_token_length=LONGEST_PIECE,
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        (
            part
            for line in _sample(sides, config.max_train_lines, seed)
            for part in _parts(" " + normalised(line, config.normalize))
        ),
        trainer,
    )
    model = json.loads(tokenizer.to_str())["model"]
    vocab: dict[str, int] = model["vocab"]
    return Codec(sorted(vocab, key=vocab.__getitem__), [(a, b) for a, b in model["merges"]], config.normalize)


def _sample(sides: Sequence[Lines], most: int, seed: int) -> Iterator[str]:
    """All lines of all sides, or `most` of them, each as likely as any other; in order, and the same for a seed."""
    left = sum(1 for lines in sides for _ in lines())
    wanted = min(most, left)
    draw = random.Random(seed)
    for lines in sides:
        for line in lines():
            if wanted >= left or draw.random() * left < wanted:
                wanted -= 1
                yield line
            left -= 1


def _parts(text: str) -> Iterable[str]:
    """What BPE learns from a line: all of it, but no end of a very long one and no endless word."""
    text = text[:_LINE_CAP]
    return _PART.findall(text) if len(text) > 100 and _ENDLESS.search(text) else (text,)


def _pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    # The space before the line is put there by `encode`, always, so that `decode` can take away exactly one.
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _of_characters() -> pre_tokenizers.PreTokenizer:
    """For learning merges that put characters together from their bytes, and nothing from characters.

    No byte that ends a character is the first of another in a merge, so in encoding they stay within characters, too.
    """
    each = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    return pre_tokenizers.Sequence([each, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _byte_alphabet() -> dict[str, int]:
    """The byte behind each letter of the byte-level alphabet: itself where printable, else moved beyond U+0100."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + n): byte for n, byte in enumerate(moved)}


_BYTE_OF = _byte_alphabet()


def _complaint_about(found: Any) -> str | None:
    """What is wrong with the content of a subwords file: nothing in it may surprise the tokenizer or the model."""
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        return f"expected format {_FORMAT}, found {found.get('format') if isinstance(found, dict) else 'no mapping'!r}"
    if tuple(found) != _KEYS:
        return f"expected the keys {', '.join(_KEYS)}, found {', '.join(map(repr, found))}"
    if found["normalize"] not in ("nfc", "none") or not isinstance(found["joint"], bool):
        return "unknown normalisation, or joint is neither true nor false"
    codecs = found["codecs"]
    if not isinstance(codecs, list) or len(codecs) != (1 if found["joint"] else 2):
        return "wrong number of vocabularies"
    for codec in codecs:
        if not isinstance(codec, dict) or set(codec) != {"vocab", "merges"}:
            return "expected vocab and merges"
        if complaint := _complaint_about_codec(codec["vocab"], codec["merges"]):
            return complaint
    return None


def _complaint_about_codec(vocab: Any, merges: Any) -> str | None:
    if not isinstance(vocab, list) or not isinstance(merges, list):
        return "vocab and merges must be lists"
    if not all(isinstance(piece, str) and piece and all(letter in _BYTE_OF for letter in piece) for piece in vocab):
        return "a piece is not written in the byte-level alphabet"
    known = set(vocab)
    if len(known) != len(vocab):
        return "a piece occurs twice"
    if not known.issuperset(_BYTE_OF):
        return "a byte is missing from the vocabulary"
    if max(map(len, vocab)) > LONGEST_PIECE:
        return f"a piece is longer than {LONGEST_PIECE} bytes"
    for merge in merges:
        if not isinstance(merge, list) or len(merge) != 2 or not all(isinstance(part, str) for part in merge):
            return "a merge is not a pair of pieces"
        if merge[0] not in known or merge[1] not in known or merge[0] + merge[1] not in known:
            return f"the merge of {merge[0]!r} and {merge[1]!r} is not in the vocabulary"
    return None
