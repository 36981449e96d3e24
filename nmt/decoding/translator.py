"""Lines in, translations out: encodes, sorts, batches, searches, decodes, and puts the translations back in order."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nmt.data.arrays import Ragged
from nmt.data.batches import length_batches, pad
from nmt.data.placeholders import came_back, protected_like, restored
from nmt.data.plan import Rows
from nmt.data.subword_kinds import LONGEST_PIECE
from nmt.data.subwords import BOS, EOS, Subwords
from nmt.data.text import with_ends_of
from nmt.decoding.beam import BeamSettings, Hypothesis, search
from nmt.decoding.candidates import characters_of
from nmt.decoding.fixed_search import FixedSearch
from nmt.decoding.long_lines import (
    MAX_SRC_LEN,
    Limits,
    Split,
    is_letterless,
    join_attention,
    join_hypotheses,
    join_ids,
    joined,
    ranked,
    split,
    surely_too_long,
)
from nmt.decoding.phrases import pieces_of
from nmt.decoding.request import Request, Sources, TagsOf, is_blank
from nmt.decoding.rules import Rules
from nmt.decoding.sampling import Narrowing, fingerprint, sample
from nmt.decoding.scorer import full_precision, score_tokens
from nmt.decoding.translation import Forced, Scored, Translation, read_at_once
from nmt.errors import NmtError, OutOfMemory, RecipeError, is_out_of_memory
from nmt.evaluation.alignment import subword_alignment
from nmt.evaluation.metrics import comet_model, expected_utility
from nmt.models.base import Attns, SearchModel, evaluating
from nmt.recipe.decode_options import DecodeConfig

Row = tuple[list[int], Request | None]  # ids of a source, without EOS, and what is asked, if that is known
_LINE_ENDS = str.maketrans("\n\r", "  ")
# A piece has at most LONGEST_PIECE bytes, so this many characters have MAX_SRC_LEN pieces or more: the rest of a
# line of any size need not be looked at.
_MAX_CHARACTERS = MAX_SRC_LEN * LONGEST_PIECE
_TOO_LONG = "too long ({:,} characters): only its first {:,} subwords were read; split it into sentences"
NOWHERE = "no word that this model writes looks at the source"


class Translator:
    """Translates lines with one model, in the order in which they come.

    tags_of: the tags to put before a line. languages: of both sides; numbers alone are copied where both write them
    alike. fixed: the beam search of the same model where nothing is asked of a translation. whole_characters: False to
    let the model write bytes that are no UTF-8, as other engines do.
    """

    def __init__(
        self,
        model: SearchModel,
        subwords: Subwords,
        config: DecodeConfig,
        limits: Limits | None = None,
        tags_of: TagsOf | None = None,
        languages: tuple[str, str] = ("", ""),
        fixed: FixedSearch | None = None,
        *,
        whole_characters: bool = True,
    ) -> None:
        assert config.n_best <= config.n_candidate
        self.model, self.subwords, self.config, self.fixed = model, subwords, config, fixed
        self.limits, self.sources = limits or Limits(), Sources(subwords.src, tags_of)
        self._src_lang, self._trg_lang = languages[0], config.trg_lang or languages[1]
        self._by_utility = config.mbr != "none"
        n_text = subwords.trg.n_text
        self._characters = characters_of(subwords.trg.raw(range(n_text))) if whole_characters else None
        n_best = config.beam if self._by_utility or config.qe else config.n_best  # they choose among all of a beam
        how: dict[str, Any] = {"length_penalty": config.length_penalty, "alpha": config.alpha, "beam": config.beam}
        self._how = BeamSettings(**how, n_real=n_text, n_best=n_best)

    def translate(
        self, lines: Iterable[str | Request], on_progress: Callable[[int], object] | None = None
    ) -> Iterator[Translation]:
        """One translation for each line, in order, `config.window` lines at a time. on_progress: called with the number
        of lines done since the last call."""
        coming = iter(lines)
        while window := list(islice(coming, self.config.window)):
            yield from self._translate_window(window, on_progress or (lambda n_line: None))

    def score(
        self, sources: Sequence[str | Request], translations: Sequence[str], *, align: bool = False
    ) -> Iterator[Scored]:
        """Score given translations, in order; blank ones of blank sources do not reach the model. Of a request the
        source and its tags count. align: with alignments."""
        requests = list(map(self._request, sources))
        there = [n for n, one in enumerate(requests) if not (is_blank(one.source) and is_blank(translations[n]))]
        read = [replace(requests[n], source=requests[n].source[:_MAX_CHARACTERS].replace("\n", " ")) for n in there]
        kinds = self.subwords.src.protects
        alike = [protected_like(translations[n], dict(requests[n].items), kinds) for n in there]
        src = list(map(self.sources.encode, read))
        trg = self.subwords.trg.encode([text[:_MAX_CHARACTERS] for text in alike])
        src_ids, trg_ids = ([ids[:MAX_SRC_LEN] for ids in side] for side in (src, trg))
        found = [Scored([], [], [])] * len(requests)
        for place, (n, told) in enumerate(zip(there, self._forced(src_ids, trg_ids, align), strict=True)):
            sides = ((requests[n].source, src[place]), (alike[place], trg[place]))
            warnings = (_TOO_LONG.format(len(text), MAX_SRC_LEN) for text, ids in sides if len(ids) > MAX_SRC_LEN)
            ids, items = (src_ids[place], trg_ids[place]), dict(requests[n].items)
            found[n] = Scored(told.log_probs, *ids, items, next(warnings, None), told.alignment)
        yield from found

    def forced(self, translations: Sequence[Translation], *, align: bool = False) -> list[list[Forced]]:
        """Forced decoding of the best translations: of each the results of all that was `read_at_once`."""
        read = [read_at_once(line) for line in translations]
        every = [one for its in read for one in its]
        told = iter(self._forced([one.src_ids for one in every], [one.trg_ids for one in every], align))
        return [list(islice(told, len(its))) for its in read]

    def _forced(self, src_ids: Sequence[list[int]], trg_ids: Sequence[list[int]], align: bool) -> list[Forced]:
        alignments: dict[int, list[int | None]] = {}

        def look(pair: int, weights: Tensor) -> None:
            alignments[pair] = subword_alignment(weights, self.config.align_layer, self.config.align_head)

        is_seen, max_tokens = align and self.model.attends, self.config.max_tokens
        with evaluating(self.model):
            told = score_tokens(self.model, src_ids, trg_ids, max_tokens=max_tokens, look=look if is_seen else None)
        return [Forced(one, alignments.get(n, [])) for n, one in enumerate(told)]

    def attention(self, translation: Translation) -> Attns:
        """Return the attention weights of the best translation of a line that is not blank: (n_layer, n_head, …) of
        each kind, with EOS; 0 between pieces. Raises NmtError where target words do not look at the source."""
        if not self.model.attends:
            raise NmtError(f"{NOWHERE}, so there is no attention to show.")
        pieces = []
        for one in read_at_once(translation):
            src_seq, trg_seq = pad(Ragged.of([one.src_ids]), after=(EOS,)), pad(Ragged.of([one.trg_ids]), before=(BOS,))
            with torch.inference_mode(), evaluating(self.model):
                _, attns = self.model(src_seq.to(self.model.device), trg_seq.to(self.model.device), return_attns=True)
            pieces.append([None if kind is None else full_precision(kind[:, 0]).cpu() for kind in attns])
        kinds = [[one for one in kind if one is not None] for kind in zip(*pieces, strict=True)]
        return Attns(*(join_attention(blocks) if blocks else None for blocks in kinds))

    def _translate_window(self, lines: Sequence[str | Request], done: Callable[[int], object]) -> list[Translation]:
        """Translate lines. Equal ones are encoded and searched for once; blank ones never reach the model."""
        requests, ids_of = list(map(self._request, lines)), cache(self.sources.encode)
        count = Counter(requests)
        read = [one for one in count if not self._is_unread(one)]
        done(len(requests) - sum(count[one] for one in read))
        splits = {one: its for one in read if (its := self._split(one, ids_of))}
        pieces = (piece for _, pieces in splits.values() for piece in pieces if not self._is_unread(piece))
        different = list(dict.fromkeys(one for one in (*read, *pieces) if one not in splits))
        translations: dict[Request, Translation] = {}
        for batch, hypotheses in self.batches(list(map(ids_of, different)), different):
            asked = [different[n] for n in batch]
            for request, found, qe in zip(asked, hypotheses, self._estimated(asked, hypotheses), strict=True):
                translations[request] = self._answer(request, ids_of(request), found, qe)
            # A line that was split is done when all of its pieces are.
            done(sum(count[one] for one in asked))
        for request, (line, own) in splits.items():
            parts = [translations.get(one) or _unread(one) for one in own]
            translations[request] = self._of_pieces(request, line, parts)
            done(count[request])
        return [translations.get(request) or _unread(request) for request in requests]

    def _split(self, request: Request, ids_of: Callable[[Request], list[int]]) -> tuple[Split, list[Request]] | None:
        """A line in pieces, as it was given, and the requests of these; None if the model reads it at once."""
        limits = self.limits if request.can_be_split else Limits()
        ids = None if surely_too_long(request.source, limits.piece) else ids_of(request)
        emoji = self.config.copy_letterless and not request.asks
        codec = self.sources.codec_of(request)
        if not (found := split(request.source, ids, codec, limits, emoji=emoji, language=self._src_lang)):
            return None
        given = replace(found, pieces=[restored(piece, dict(request.items)) for piece in found.pieces])
        starts = zip(found.pieces, given.starts, strict=True)
        return given, [request.of_piece(*one, is_first=not n) for n, one in enumerate(starts)]

    def _texts(self, request: Request, found: Sequence[Hypothesis]) -> list[str]:
        # A line feed inside a translation would shift every line after it.
        items = dict(request.items)
        return [self.subwords.trg.decode(one.ids, items).translate(_LINE_ENDS) for one in found]

    def _estimated(self, requests: Sequence[Request], found: Sequence[Sequence[Hypothesis]]) -> list[list[float]]:
        """The quality of each hypothesis of each line by decode.qe; none without."""
        if not self.config.qe:
            return [[] for _ in requests]
        model = comet_model("decode.qe", self.config.qe, str(self.model.device))
        if model.model.requires_references():
            raise RecipeError(
                f"decode.qe: {self.config.qe} compares with references: name a model without, such as "
                "Unbabel/wmt22-cometkiwi-da."
            )
        pairs = [
            (restored(one.source, dict(one.items)), text)
            for one, its in zip(requests, found, strict=True)
            for text in self._texts(one, its)
        ]
        scores = iter(model.scores(*zip(*pairs, strict=True)))
        return [list(islice(scores, len(its))) for its in found]

    def _answer(
        self, request: Request, src_ids: list[int], found: Sequence[Hypothesis], qe: list[float]
    ) -> Translation:
        """The answer to a line that the model read at once. found: the hypotheses of it, best first or as drawn."""
        codec, items, texts = self.subwords.trg, dict(request.items), self._texts(request, found)
        worth = dict(enumerate(qe or [one.normalised for one in found]))
        best = sorted(worth, key=lambda n: -worth[n])
        if self._by_utility:
            best = best[: math.ceil(len(best) / 2)] if qe else list(worth)
            worth = dict(zip(best, expected_utility([texts[n] for n in best]), strict=True))
            best.sort(key=lambda n: -worth[n])
        first: dict[str, int] = {}
        for n in best:  # the same text can be drawn twice, or found in other subwords
            first.setdefault(texts[n], n)
        best = list(first.values())[: self.config.n_best]
        texts, utilities = [texts[n] for n in best], [worth[n] for n in best] if self._by_utility else []
        qualities = [qe[n] for n in best] if qe else []
        hypotheses, unmet = [found[n] for n in best], self._unmet(request, texts[0])
        missing, doubled = list[str](), list[str]()
        if codec.protects:  # the items that are lacking, and what is there too often
            ids = hypotheses[0].ids
            written = [name for i in ids if (name := codec.placeholder(i))]
            without = codec.decode(ids, dict.fromkeys(codec.placeholders, " "))
            missing, doubled = came_back(restored(request.source, items), written, without, items, codec.protects)
        if codec.whitespace == "unified":
            texts = [with_ends_of(request.source, text) for text in texts]
        return Translation(texts[0], texts, hypotheses, src_ids, utilities, qualities, unmet, items, missing, doubled)

    def _of_pieces(self, request: Request, line: Split, parts: list[Translation]) -> Translation:
        """The answer to a line from those to its pieces: its k-th translation is made of their k-th."""
        there = [one for one in parts if one.hypotheses]
        hypotheses = join_hypotheses([one.hypotheses for one in there], self._how)
        each = [one.texts for one in parts]
        texts = [joined(line, ranked(each, rank))[0] for rank in range(len(hypotheses) or 1)]
        if "\n" not in request.source:  # whose lines are one
            texts = [text.translate(_LINE_ENDS) for text in texts]
        utilities, qualities = (
            [math.fsum(ranked(each, rank)) / len(each) for rank in range(len(hypotheses))] if all(each) else []
            for each in ([one.utilities for one in there], [one.qualities for one in there])
        )
        return Translation(
            texts[0],
            texts,
            hypotheses,
            join_ids([one.src_ids for one in there]),
            utilities,
            qualities,
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
        request = request.normalised(trg) if request.asks else request
        return request.protected(kinds) if (kinds := self.subwords.src.protects) else request

    def batches(
        self, ids: Sequence[list[int]], requests: Sequence[Request] | None = None
    ) -> Iterator[tuple[Rows, list[list[Hypothesis]]]]:
        """Find hypotheses for rows of ids, batch by batch: the numbers of the rows, and what was found for each.

        requests: what is asked of each row's translation, if anything is.
        """
        # A batch costs sentences x hypotheses x longest source, and the source ends with EOS.
        cost = np.array([(len(row) + 1) * self.config.n_candidate for row in ids], dtype=np.int64)
        for batch in length_batches(cost, self.config.max_tokens):
            yield batch, self._search([(ids[n], requests[n] if requests else None) for n in batch])

    def _search(self, rows: Sequence[Row]) -> list[list[Hypothesis]]:
        """Search for one batch; where the memory of the device is too small, for its halves. Raises OutOfMemory for one
        sentence, and RecipeError where phrases are required of samples."""
        try:
            with evaluating(self.model):
                return self._search_whole(rows)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if len(rows) == 1:
                instead = "" if self.model.device.type == "cpu" else ", or translate on the CPU: --device cpu"
                raise OutOfMemory(
                    f"the memory of {self.model.device} is too small for one sentence of {len(rows[0][0])} subwords "
                    f"and {self.config.n_candidate} hypotheses of it. Make decode.beam or decode.samples smaller"
                    f"{instead}."
                ) from None
        half = len(rows) // 2
        return self._search(rows[:half]) + self._search(rows[half:])

    def _search_whole(self, rows: Sequence[Row]) -> list[list[Hypothesis]]:
        config, subwords, ids, device = self.config, self.subwords, [ids for ids, _ in rows], self.model.device
        # Bare ids ask nothing of placeholders: they may be those of any text.
        is_bare = any(request is None for _, request in rows)
        placeholders = {} if is_bare else subwords.trg.placeholder_ids()
        requests = [(request or Request("")).in_placeholders(subwords.src.protects) for _, request in rows]
        src_seq = pad(Ragged.of(ids), after=(EOS,)).to(device)
        n_src = torch.tensor([len(row) for row in ids])
        min_len = (config.min_len_a * n_src).long() + config.min_len_b
        max_len = (config.max_len_a * n_src).long() + config.max_len_b
        for n, one in enumerate(requests):
            if one.asks:  # which a translation may have beside its own
                phrases = [part.phrase for part in one.wanted for _ in range(part.times)]
                asked = [one.prefix, *phrases] if one.prefix else phrases
                max_len[n] += sum(map(len, subwords.trg.encode(asked)))
        rules = None
        if placeholders or config.no_repeat or int(min_len.max()) or any(request.asks for request in requests):
            more: dict[str, Any] = {"placeholders": placeholders, "n": config.samples or 1}
            pieces, min_len = pieces_of(subwords.trg), min_len.to(device)
            rules = Rules(pieces, requests, min_len=min_len, no_repeat=config.no_repeat, **more)
        if config.samples:
            if any(request.requires for request in requests):
                raise RecipeError("phrases can be required of beam search only: set decode.samples to 0.")
            more = {"n": config.samples, "seeds": [[config.seed, *fingerprint(row)] for row in ids]}
            more["narrowing"] = Narrowing(config.temperature, config.top_k, config.top_p, config.epsilon)
            return sample(self.model, src_seq, self._how, max_len, rules=rules, characters=self._characters, **more)
        if self.fixed and rules is None:
            return self.fixed(src_seq, self._how, max_len, self._characters)
        return search(self.model, src_seq, self._how, max_len, rules=rules, characters=self._characters)


def _unread(request: Request) -> Translation:
    """The answer to a line that the model does not read: nothing where nothing is to be seen, else the line itself."""
    text = "" if is_blank(request.source) else restored(request.source, dict(request.items))
    return Translation(text, [text], [], [])
