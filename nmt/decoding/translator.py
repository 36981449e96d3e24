"""Lines in, translations out: encodes, sorts, batches, searches, decodes, and puts the translations back in order.

A batch is searched in `batch_search.py`.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import torch

from nmt.data.arrays import Ragged
from nmt.data.batches import length_batches, pad
from nmt.data.placeholders import came_back, protected_like, restored
from nmt.data.plan import Rows
from nmt.data.subword_kinds import LONGEST_PIECE
from nmt.data.subwords import BOS, EOS, Subwords
from nmt.data.text import with_ends_of
from nmt.decoding.batch_search import BARE, BatchSearch
from nmt.decoding.beam import Hypothesis
from nmt.decoding.long_lines import (
    MAX_SRC_LEN,
    Limits,
    Split,
    is_letterless,
    join_attns,
    join_hypotheses,
    join_ids,
    join_texts,
    ranked,
    shortened,
    split,
    surely_too_long,
)
from nmt.decoding.request import Request, Sources, TagsOf, is_blank
from nmt.decoding.scorer import Look, LookAtPieces, full_precision
from nmt.decoding.translation import Scored, Translation, read_at_once
from nmt.errors import NmtError
from nmt.models.base import Attns, SearchModel, evaluating
from nmt.recipe.decode_options import DecodeConfig

# For minimum Bayes risk: what each of some translations of a line is worth beside the others.
Utility = Callable[[Sequence[str]], list[float]]

Splits = dict[Request, tuple[Split, list[Request]]]  # lines in pieces
_LINE_ENDS = str.maketrans("\n\r", "  ")


# A piece has at most LONGEST_PIECE bytes, so this many characters have MAX_SRC_LEN pieces or more: the rest of a
# line of any size need not be looked at.
_MAX_CHARACTERS = MAX_SRC_LEN * LONGEST_PIECE
NOWHERE = "no word that this model writes looks at the source"


class Translator:
    """Translates lines with one model, in the order in which they come.

    utility: for minimum Bayes risk, what each of some translations of a line is worth beside the others. tags_of: the
    tags to put before a line. languages: of both sides; numbers alone are copied where both write them alike.
    """

    def __init__(
        self,
        model: SearchModel | BatchSearch,
        subwords: Subwords,
        config: DecodeConfig,
        utility: Utility | None = None,
        limits: Limits | None = None,
        tags_of: TagsOf | None = None,
        languages: tuple[str, str] = ("", ""),
    ) -> None:
        assert config.n_best <= config.n_candidate
        assert (utility is not None) == (config.mbr != "none")
        self.searcher = BatchSearch(model, subwords, config) if isinstance(model, SearchModel) else model
        self.model = self.searcher.model
        self.subwords = subwords
        self.config = config
        self.limits = limits or Limits()
        self.sources = Sources(subwords.src, tags_of)
        self._src_lang, self._trg_lang = languages[0], config.trg_lang or languages[1]
        self._utility = utility

    @property
    def attends(self) -> bool:
        """True where the model has attention weights over the source."""
        return self.model.attends

    def translate(
        self, lines: Iterable[str | Request], on_progress: Callable[[int], object] | None = None
    ) -> Iterator[Translation]:
        """One translation for each line, in order, `config.window` lines at a time. on_progress: called with the number
        of lines done since the last call."""
        coming = iter(lines)
        while window := list(islice(coming, self.config.window)):
            yield from self.search(*self.encode(window), on_progress)

    def score(
        self, sources: Sequence[str | Request], translations: Sequence[str], look: Look | None = None
    ) -> Iterator[Scored]:
        """Score given translations, in order; blank ones of blank sources do not reach the model.

        look: told where the model looked in each of the others, by its number. Of a request the source and its tags
        count.
        """
        pairs = list(zip(map(self._request, sources), translations, strict=True))
        there = [n for n, (request, text) in enumerate(pairs) if not (is_blank(request.source) and is_blank(text))]
        requests, kinds = [pairs[n][0] for n in there], self.subwords.src.protects
        alike = [protected_like(pairs[n][1], dict(pairs[n][0].items), kinds) for n in there]
        read = [replace(one, source=one.source[:_MAX_CHARACTERS].replace("\n", " ")) for one in requests]
        src_ids, of_src = shortened(self.sources.encode(read), [one.source for one in requests], MAX_SRC_LEN)
        written = self.subwords.trg.encode([text[:_MAX_CHARACTERS] for text in alike])
        trg_ids, of_trg = shortened(written, alike, MAX_SRC_LEN)
        told = self.searcher.log_probs(src_ids, trg_ids, look and (lambda pair, weights: look(there[pair], weights)))
        found = [Scored([], [], [])] * len(pairs)
        for place, n in enumerate(there):
            items, warning = dict(requests[place].items), of_src[place] or of_trg[place]
            found[n] = Scored(told[place], src_ids[place], trg_ids[place], items, warning)
        yield from found

    def token_log_probs(
        self, translations: Sequence[Translation], look: LookAtPieces | None = None
    ) -> list[list[float]]:
        """Log-probability of each token of the best translations, EOS included; [] for a blank line. look: told where
        the model looked in each of `read_at_once`."""
        places = [(n, piece) for n, one in enumerate(translations) for piece in range(len(read_at_once(one)))]
        read = [part for one in translations for part in read_at_once(one)]
        src_ids, trg_ids = [one.src_ids for one in read], [one.hypotheses[0].ids for one in read]

        told: list[list[float]] = [[] for _ in translations]
        its = self.searcher.log_probs(
            src_ids, trg_ids, look and (lambda pair, seen: look(places[pair][0], seen, places[pair][1]))
        )
        for (number, _), tokens in zip(places, its, strict=True):
            told[number] += tokens
        return told

    def attention(self, translation: Translation) -> Attns:
        """Return the attention weights of the best translation of a line that is not blank: (n_layer, n_head, …) of
        each kind, with EOS; 0 between pieces. Raises NmtError where target words do not look at the source."""
        if not self.model.attends:
            raise NmtError(f"{NOWHERE}, so there is no attention to show.")
        return join_attns([_attention(self.model, one) for one in read_at_once(translation)])

    def search(
        self,
        requests: Sequence[Request],
        ids_of: Mapping[Request, list[int]],
        splits: Splits,
        on_progress: Callable[[int], object] | None = None,
    ) -> list[Translation]:
        """Translate encoded lines. Identical ones are searched for once; blank ones never reach the model."""
        count, done = Counter(requests), on_progress or (lambda n_line: None)
        done(sum(n for request, n in count.items() if request not in ids_of and request not in splits))
        different, ids = list(ids_of), list(ids_of.values())
        translations: dict[Request, Translation] = {}
        for batch, hypotheses in self.batches(ids, different):
            for number, found in zip(batch, hypotheses, strict=True):
                translations[different[number]] = self._answer(different[number], ids[number], found)
            # A line that was split is done when all of its pieces are.
            done(sum(count[different[number]] for number in batch))
        for request, (of_line, pieces) in splits.items():
            parts = [translations.get(piece) or _unread(piece) for piece in pieces]
            translations[request] = self._of_pieces(request, of_line, parts)
            done(count[request])
        return [translations.get(request) or _unread(request) for request in requests]

    def _answer(self, request: Request, src_ids: list[int], found: Sequence[Hypothesis]) -> Translation:
        """The answer to a line that the model read at once. found: the hypotheses of it, best first or as drawn."""
        # A line feed inside a translation would shift every line after it.
        codec, items = self.subwords.trg, dict(request.items)
        texts = [codec.decode(one.ids, items).translate(_LINE_ENDS) for one in found]
        worth = self._utility(texts) if self._utility else [one.normalised for one in found]
        best = list(range(len(found)))  # as search ranks them
        if self._utility or self.config.samples:
            best.sort(key=lambda n: -worth[n])
        first: dict[str, int] = {}
        for n in best:  # the same text can be drawn twice, or found in other subwords
            first.setdefault(texts[n], n)
        best = list(first.values())[: self.config.n_best]
        texts, utilities = [texts[n] for n in best], [worth[n] for n in best] if self._utility else []
        hypotheses, unmet = [found[n] for n in best], self._unmet(request, texts[0])
        missing, doubled = list[str](), list[str]()
        if codec.protects:  # the items that are lacking, and what is there too often
            ids = hypotheses[0].ids
            written = [name for i in ids if (name := codec.placeholder(i))]
            without = codec.decode(ids, dict.fromkeys(codec.placeholders, " "))
            missing, doubled = came_back(restored(request.source, items), written, without, items, codec.protects)
        if codec.whitespace == "unified":
            texts = [with_ends_of(request.source, text) for text in texts]
        return Translation(texts[0], texts, hypotheses, src_ids, utilities, unmet, items, missing, doubled)

    def _of_pieces(self, request: Request, line: Split, parts: list[Translation]) -> Translation:
        """The answer to a line from those to its pieces: its k-th translation is made of their k-th."""
        there = [one for one in parts if one.hypotheses]
        hypotheses = join_hypotheses([one.hypotheses for one in there], self.config.length_penalty, self.config.alpha)
        each = [one.texts for one in parts]
        texts = [join_texts(line, ranked(each, rank)) for rank in range(len(hypotheses))]
        if "\n" not in request.source:  # whose lines are one
            texts = [text.translate(_LINE_ENDS) for text in texts]
        utilities = []
        if self._utility:
            worth = [ranked([one.utilities for one in there], rank) for rank in range(len(hypotheses))]
            utilities = [math.fsum(one) / len(one) for one in worth]
        return Translation(
            texts[0],
            texts,
            hypotheses,
            join_ids([one.src_ids for one in there]),
            utilities,
            self._unmet(request, texts[0][len(line.spaces[0]) :]),
            missing=[item for part in parts for item in part.missing],
            doubled=[item for part in parts for item in part.doubled],
            split=line,
            parts=parts,
        )

    def _unmet(self, request: Request, text: str) -> list[str]:
        codec = self.subwords.trg
        # Items come back as they stood in the source, and what is asked is in the letters that the model writes.
        return request.unmet(codec.normalised(text) if codec.protects else text) if request.asks else []

    def _is_unread(self, request: Request) -> bool:
        """Return whether a line is answered without the model."""
        if is_blank(request.source):
            return True
        if not self.config.copy_letterless or request.asks:
            return False
        text = restored(request.source, dict(request.items))
        return is_letterless(text, self._src_lang, request.trg_lang or self._trg_lang)

    def _request(self, line: str | Request) -> Request:
        """A line as a request, in the letters that the model writes, and with placeholders for its items."""
        request = Request(line) if isinstance(line, str) else line
        if "\n" in request.source and not request.can_be_split:
            request = replace(request, source=request.source.replace("\n", " "))
        trg = self.subwords.trg
        request = request.changed(trg.normalised, trg.normalised_prefix) if request.asks else request
        return request.protected(kinds) if (kinds := self.subwords.src.protects) else request

    def encode(self, lines: Sequence[str | Request]) -> tuple[list[Request], dict[Request, list[int]], Splits]:
        """Encode each different text once, and split lines that are too long for the model: a request for each line,
        ids of each different text, and the lines in pieces."""
        every = [self._request(line) for line in lines]
        requests = [request for request in dict.fromkeys(every) if not self._is_unread(request)]
        limits, encode = self.limits, self.sources.encode
        short = [request for request in requests if not surely_too_long(request.source, limits.piece)]
        ids_of = dict(zip(short, encode(short), strict=True))
        splits: Splits = {}
        for request in requests:
            own = limits if request.can_be_split else Limits()
            emoji = self.config.copy_letterless and not request.asks
            codec, its_ids = self.sources.codec_of(request), ids_of.get(request)
            if found := split(request.source, its_ids, codec, own, emoji=emoji, language=self._src_lang):
                as_given = replace(found, pieces=[restored(piece, dict(request.items)) for piece in found.pieces])
                starts = zip(found.pieces, as_given.starts, strict=True)
                splits[request] = as_given, [request.of_piece(*one, is_first=not n) for n, one in enumerate(starts)]
        for request in splits:
            ids_of.pop(request, None)
        new = dict.fromkeys(piece for _, pieces in splits.values() for piece in pieces if not self._is_unread(piece))
        rest = [request for request in (*requests, *new) if request not in ids_of and request not in splits]
        ids_of.update(zip(rest, encode(rest), strict=True))
        return every, ids_of, splits

    def batches(
        self, ids: Sequence[list[int]], requests: Sequence[Request] | None = None
    ) -> Iterator[tuple[Rows, list[list[Hypothesis]]]]:
        """Find hypotheses for rows of ids, batch by batch: the numbers of the rows, and what was found for each.

        requests: what is asked of each row's translation, if anything is.
        """
        # A batch costs sentences x hypotheses x longest source, and the source ends with EOS.
        cost = np.array([(len(row) + 1) * self.config.n_candidate for row in ids], dtype=np.int64)
        for batch in length_batches(cost, self.config.max_tokens):
            yield batch, self.searcher.search([(ids[n], requests[n] if requests else BARE) for n in batch])


def _unread(request: Request) -> Translation:
    """The answer to a line that the model does not read: nothing where nothing is to be seen, else the line itself."""
    text = "" if is_blank(request.source) else restored(request.source, dict(request.items))
    return Translation(text, [text], [], [])


def _attention(model: SearchModel, translation: Translation) -> Attns:
    src_seq = pad(Ragged.of([translation.src_ids]), after=(EOS,))
    trg_seq = pad(Ragged.of([translation.hypotheses[0].ids]), before=(BOS,))
    with torch.inference_mode(), evaluating(model):
        _, attns = model(src_seq.to(model.device), trg_seq.to(model.device), return_attns=True)
    found: Attns = attns.changed(lambda weights: full_precision(weights[:, 0]).cpu())
    return found
