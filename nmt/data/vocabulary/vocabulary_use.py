"""How the subwords serve the training pairs: pieces a word, and which pieces of the vocabulary occur how often."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.data.vocabulary.subwords import N_SPECIAL, Codec, Subwords
from nmt.languages import language_of

RARE = (10, 100)  # pieces that occur fewer times are counted
N_FREQUENT = 20
_SEEN_OFTEN = 20  # times that a piece of the vocabulary should occur in the corpus, on average


def large_vocabulary(n_vocab: int, n_token: int) -> str | None:
    """What to say of a target vocabulary that is large for its corpus; None: it is not.

    n_vocab: pieces, control symbols counted. n_token: target tokens of the training pairs, EOS counted.
    """
    if n_token >= _SEEN_OFTEN * n_vocab:
        return None
    return (
        f"the vocabulary is large for the corpus: {n_vocab:,} pieces, {n_token:,} target tokens, so a piece is seen "
        f"{n_token / n_vocab:.1f} times on average: try --vocab-size {_advised(n_token)}"
    )


def _advised(n_token: int) -> int:
    """A round size at which a piece is seen often enough, or as small as is of use."""
    most = n_token // _SEEN_OFTEN
    return max((size for size in (500, 1000, 2000, 4000, 8000, 16000, 32000) if size <= most), default=500)


class VocabularyUse:
    """Counts as pairs are encoded; eight bytes a piece of the vocabulary. Languages without spaces have no words."""

    def __init__(self, subwords: Subwords, langs: tuple[str, str]) -> None:
        self._subwords = subwords
        codecs = {"src": subwords.src, "trg": subwords.trg}
        self._sides = {
            name: _Side(codec, has_words=not language_of(lang).is_unspaced)
            for (name, codec), lang in zip(codecs.items(), langs, strict=True)
        }
        self.sizes = subwords.src.size, subwords.trg.size

    def add(self, side: str, n_word: int, n_character: int, counts: NDArray[np.integer[Any]]) -> None:
        """Some lines of a side: what they have, and how often each id is in them."""
        mine = self._sides[side]
        mine.n_word += n_word
        mine.n_character += n_character
        mine.counts += counts

    def as_dict(self) -> dict[str, Any]:
        """For JSON, by side; a joint vocabulary also as a whole."""
        found = {name: {**side.fertility(), **_coverage(side.codec, side.counts)} for name, side in self._sides.items()}
        if self._subwords.joint:
            total = self._sides["src"].counts + self._sides["trg"].counts
            found["joint"] = _coverage(self._subwords.src, total)
        return found


class _Side:
    def __init__(self, codec: Codec, *, has_words: bool) -> None:
        self.codec, self.has_words = codec, has_words
        self.counts = np.zeros(codec.size, dtype=np.int64)
        self.n_word = self.n_character = 0

    def fertility(self) -> dict[str, Any]:
        n_piece = int(self.counts.sum())
        of_words = {"words": self.n_word, "pieces_per_word": round(n_piece / max(self.n_word, 1), 3)}
        return {
            **(of_words if self.has_words else {}),
            "characters": self.n_character,
            "pieces": n_piece,
            "characters_per_piece": round(self.n_character / max(n_piece, 1), 3),
        }


def _coverage(codec: Codec, counts: Any) -> dict[str, Any]:
    own = counts[N_SPECIAL:]
    frequent = [i for i in np.argsort(-own, kind="stable")[:N_FREQUENT].tolist() if own[i]]
    return {
        "size": len(own),
        "occur": int((own > 0).sum()),
        "fewer_than": {str(n): int((own < n).sum()) for n in RARE},
        "most_frequent": [[codec.pieces([i + N_SPECIAL])[0], int(own[i])] for i in frequent],
    }
