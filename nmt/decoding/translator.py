"""Translator of lines: encode, sort, batch, search and decode, and restore the order of the lines; and its results."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nmt.data.arrays import Ragged
from nmt.data.batches import length_batches, pad
from nmt.data.placeholders import came_back, protected_like, restored
from nmt.data.plan import Rows
from nmt.data.subwords import BOS, EOS, Codec, Subwords
from nmt.data.text import with_ends_of
from nmt.decoding import long_lines
from nmt.decoding.beam import BeamSettings, Hypothesis, fingerprint, narrowed, sample, search
from nmt.decoding.candidates import characters_of
from nmt.decoding.fixed_search import FixedSearch
from nmt.decoding.long_lines import MAX_SRC_LEN, Limits, Split, by_rank
from nmt.decoding.phrases import pieces_of
from nmt.decoding.request import Request, is_blank
from nmt.decoding.rules import Rules
from nmt.decoding.scorer import full_precision, score_tokens, subword_alignment
from nmt.errors import OutOfMemory, RecipeError, suppress_out_of_memory
from nmt.evaluation.metrics import comet_model, expected_utility
from nmt.models.base import Attns, SearchModel, evaluating
from nmt.recipe.decode_options import DecodeConfig

_LINE_ENDS = str.maketrans("\n\r", "  ")
_TOO_LONG = "too long ({:,} characters): only its first {:,} subwords were read; split it into sentences"


@dataclass(frozen=True, slots=True)
class Translation:
    """The translation of one line."""

    text: str  # the best translation; "" for a blank line
    texts: list[str]  # the n best, best first, all different; as many as `hypotheses`
    hypotheses: list[Hypothesis]  # empty for a line that the model did not read
    src_ids: list[int]  # ids that the model read, without EOS; with EOS between the pieces of a line that was split
    utilities: list[float] = field(default_factory=list)  # of `texts` under minimum Bayes risk; else empty
    qualities: list[float] = field(default_factory=list)  # of `texts` by decode.qe; else empty
    unmet: list[str] = field(default_factory=list)  # constraints that it violates: the prefix, or phrases
    items: dict[str, str] = field(default_factory=dict)  # the text behind each placeholder in the ids, by name
    missing: list[str] = field(default_factory=list)  # protected items of the line that the best translation lacks
    doubled: list[str] = field(default_factory=list)  # items that it has too often, and placeholders without an item
    split: Split | None = None  # the line in pieces, or without the emoji at its ends
    parts: list["Translation"] = field(default_factory=list)  # translations of the pieces, in order

    @property
    def trg_ids(self) -> list[int]:
        """Ids of the best translation, without EOS; empty for a blank line."""
        return self.hypotheses[0].ids if self.hypotheses else []

    @property
    def score(self) -> float:
        """Log-probability of the best translation, divided by its length penalty; 0 for a blank line."""
        return self.hypotheses[0].normalised if self.hypotheses else 0.0

    @property
    def n_best(self) -> list[dict[str, Any]]:
        """Text and scores of the n best, with the utility under minimum Bayes risk and the quality by decode.qe."""
        columns: dict[str, list[Any]] = {"output": self.texts}
        columns["score"] = [hypothesis.normalised for hypothesis in self.hypotheses]
        columns["log_prob"] = [hypothesis.score for hypothesis in self.hypotheses]
        columns |= {name: row for name, row in (("utility", self.utilities), ("qe", self.qualities)) if row}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=False)]


@dataclass(frozen=True, slots=True)
class Scored:
    """Result of forced decoding: log-probabilities of a given translation, or of a piece of one."""

    token_log_probs: list[float]  # of each subword, and of EOS
    src_ids: list[int]  # ids that the model read, without EOS
    trg_ids: list[int]
    items: dict[str, str] = field(default_factory=dict)  # the text behind each placeholder in the ids, by name
    warning: str | None = None  # for the user, about this line
    alignment: list[int | None] = field(default_factory=list)  # source position of each subword; [] if not computed

    @property
    def log_prob(self) -> float:
        """Log-probability of the whole translation."""
        return math.fsum(self.token_log_probs)


def join_scored(pieces: Sequence[Scored]) -> Scored:
    """Join the results of the pieces of a line. Both sides of the line have an EOS between two pieces."""
    log_probs, alignment, start = list[float](), list[int | None](), 0
    for piece in pieces:
        if start:
            alignment.append(None)
        alignment += [None if origin is None else start + origin for origin in piece.alignment]
        log_probs += piece.token_log_probs
        start += len(piece.src_ids) + 1
    src_ids = long_lines.join_ids([piece.src_ids for piece in pieces])
    trg_ids = long_lines.join_ids([piece.trg_ids for piece in pieces])
    return Scored(log_probs, src_ids, trg_ids, alignment=alignment)


class Translator:
    """Translates lines with one model, in their order.

    tags_of: returns the tags to put before a line, by its trg_lang and tags; None: `subwords.src` has them. languages:
    codes of source and target; a line of numbers is copied if both write digits alike. fixed: beam search of the same
    model for batches without constraints. is_free: True lets the model write invalid UTF-8, and without constraints any
    placeholder.
    """

    def __init__(
        self,
        model: SearchModel,
        subwords: Subwords,
        config: DecodeConfig,
        limits: Limits | None = None,
        tags_of: Callable[[str | None, tuple[str, ...] | None], tuple[str, ...]] | None = None,
        languages: tuple[str, str] = ("", ""),
        fixed: FixedSearch | None = None,
        *,
        is_free: bool = False,
    ) -> None:
        assert config.n_best <= config.n_candidate
        self.model, self.subwords, self.config, self.fixed = model, subwords, config, fixed
        self.limits, src = limits or Limits(), subwords.src
        tagged = cache(lambda *tags: src.tagged(tags_of(*tags)) if tags_of else src)
        # Finds the codec for the tags of a request. Raises RecipeError for tags that the model has not learnt. It is no
        # method, since a thread that calls it must not hold the model: see `cli/translate_input.py`.
        self.codec_of: Callable[[Request], Codec] = lambda request: tagged(request.trg_lang, request.tags)
        self._src_lang, self._trg_lang = languages[0], config.trg_lang or languages[1]
        self._by_utility = config.mbr != "none"
        n_text = subwords.trg.n_text
        characters = None if is_free else characters_of(subwords.trg.raw(range(n_text)))
        self._has_placeholders = bool(subwords.trg.placeholders) and not is_free
        n_best = config.beam if self._by_utility or config.qe else config.n_best  # reranking needs the whole beam
        options: dict[str, Any] = {"length_penalty": config.length_penalty, "alpha": config.alpha, "beam": config.beam}
        self._settings = BeamSettings(**options, n_real=n_text, n_best=n_best, characters=characters)

    def translate(
        self, lines: Iterable[str | Request], on_progress: Callable[[int], object] | None = None
    ) -> Iterator[Translation]:
        """Yield one translation for each line, in order, `config.window` lines at a time. on_progress: called with the
        number of lines done since the last call."""
        remaining = iter(lines)
        while window := list(islice(remaining, self.config.window)):
            yield from self._translate_window(window, on_progress or (lambda n_line: None))

    def score(
        self, sources: Sequence[str | Request], translations: Sequence[str], *, align: bool = False
    ) -> list[Scored]:
        """Score given translations, in order. A pair of blank texts does not reach the model. Only the source and the
        tags of a request are used. align: also compute alignments."""
        requests = list(map(self._request, sources))
        kept = [n for n, request in enumerate(requests) if not (is_blank(request.source) and is_blank(translations[n]))]
        kinds = self.subwords.src.protects
        targets = [protected_like(translations[n], dict(requests[n].items), kinds) for n in kept]
        src, trg = [self._encode(requests[n]) for n in kept], self.subwords.trg.encode(targets)
        src_ids, trg_ids = ([ids[:MAX_SRC_LEN] for ids in side] for side in (src, trg))
        scored = [Scored([], [], [])] * len(requests)
        for row, (n, forced) in enumerate(zip(kept, self._forced(src_ids, trg_ids, align), strict=True)):
            sides = ((requests[n].source, src[row]), (targets[row], trg[row]))
            warnings = (_TOO_LONG.format(len(text), MAX_SRC_LEN) for text, ids in sides if len(ids) > MAX_SRC_LEN)
            scored[n] = replace(forced, items=dict(requests[n].items), warning=next(warnings, None))
        return scored

    def forced(self, translations: Sequence[Translation]) -> list[Scored]:
        """Forced decoding of the best translation of each line, with alignments. Pieces are joined as in the search."""
        parts_of_lines = [[part for part in line.parts or [line] if part.hypotheses] for line in translations]
        parts = [part for line_parts in parts_of_lines for part in line_parts]
        results = iter(self._forced([part.src_ids for part in parts], [part.trg_ids for part in parts], align=True))
        return [join_scored(list(islice(results, len(line_parts)))) for line_parts in parts_of_lines]

    def _forced(self, src_ids: Sequence[list[int]], trg_ids: Sequence[list[int]], align: bool) -> list[Scored]:
        alignments: list[list[int | None]] = [[] for _ in src_ids]

        def store_alignment(pair: int, weights: Tensor) -> None:
            alignments[pair] = subword_alignment(weights, self.config.align_layer, self.config.align_head)

        on_attention = store_alignment if align and self.model.attends else None
        with evaluating(self.model):
            log_probs = score_tokens(
                self.model, src_ids, trg_ids, max_tokens=self.config.max_tokens, on_attention=on_attention
            )
        rows = zip(log_probs, src_ids, trg_ids, alignments, strict=True)
        return [Scored(values, src, trg, alignment=alignment) for values, src, trg, alignment in rows]

    def attention(self, translation: Translation) -> Attns:
        """Return the attention weights of the best translation of a line that is neither blank nor in pieces:
        (n_layer, n_head, …) of each kind that the model has, with EOS."""
        src_seq = pad(Ragged.of([translation.src_ids]), after=(EOS,)).to(self.model.device)
        trg_seq = pad(Ragged.of([translation.trg_ids]), before=(BOS,)).to(self.model.device)
        with torch.inference_mode(), evaluating(self.model):
            _, attns = self.model(src_seq, trg_seq, return_attns=True)
        return Attns(*(None if kind is None else full_precision(kind[:, 0]).cpu() for kind in attns))

    def _translate_window(self, lines: Sequence[str | Request], on_done: Callable[[int], object]) -> list[Translation]:
        """Translate lines. Equal ones are encoded and searched for once; blank ones never reach the model."""
        requests, ids_of = list(map(self._request, lines)), cache(self._encode)
        count = Counter(requests)
        splits = {line: cut for line in count if not self._copied(line) and (cut := self._split(line, ids_of))}
        whole = [request for request in count if request not in splits]
        pieces = [piece for _, line_pieces in splits.values() for piece in line_pieces]
        copies = {request: copy for request in whole + pieces if (copy := self._copied(request))}
        searched = [request for request in dict.fromkeys(whole + pieces) if request not in copies]
        translations = dict(copies)
        on_done(sum(count[request] for request in copies))
        for rows, hypotheses in self.batches(list(map(ids_of, searched)), searched):
            batch = [searched[row] for row in rows]
            qualities = self._qualities(batch, hypotheses)
            for request, candidates, qe in zip(batch, hypotheses, qualities, strict=True):
                translations[request] = self._translation_of(request, ids_of(request), candidates, qe)
            # A line that was split is done when all of its pieces are.
            on_done(sum(count[request] for request in batch if request not in splits))
        # A piece may equal a line that was split, since the context decides: join all lines before storing any.
        translations |= {
            request: self._joined_translation(request, split_line, [translations[piece] for piece in line_pieces])
            for request, (split_line, line_pieces) in splits.items()
        }
        on_done(sum(count[request] for request in splits))
        return [translations[request] for request in requests]

    def _split(self, request: Request, ids_of: Callable[[Request], list[int]]) -> tuple[Split, list[Request]] | None:
        """Split a line. Returns its pieces, with items restored, and a request for each; None if it stays whole."""
        limits = self.limits if request.can_be_split else Limits()
        emoji = self.config.copy_letterless and not request.asks
        ids, codec = ids_of(request), self.codec_of(request)
        if not (encoded := long_lines.split(request.source, ids, codec, limits, emoji=emoji, language=self._src_lang)):
            return None
        original = replace(encoded, pieces=[restored(piece, dict(request.items)) for piece in encoded.pieces])
        requests, end = list[Request](), 0
        for space, piece, original_piece in zip(encoded.spaces, encoded.pieces, original.pieces, strict=False):
            requests.append(request.of_piece(piece, end + len(space), is_first=not requests))
            end += len(space) + len(original_piece)
        return original, requests

    def _texts(self, request: Request, hypotheses: Sequence[Hypothesis]) -> list[str]:
        # A line feed inside a translation would shift every line after it.
        items = dict(request.items)
        return [self.subwords.trg.decode(hypothesis.ids, items).translate(_LINE_ENDS) for hypothesis in hypotheses]

    def _qualities(self, requests: Sequence[Request], hypotheses: Sequence[Sequence[Hypothesis]]) -> list[list[float]]:
        """Return the quality of each hypothesis of each line by decode.qe; empty lists without decode.qe."""
        if not self.config.qe:
            return [[] for _ in requests]
        model = comet_model("decode.qe", self.config.qe, str(self.model.device))
        if model.model.requires_references():
            raise RecipeError(
                f"decode.qe: {self.config.qe} needs references: name a model without references, such as "
                "Unbabel/wmt22-cometkiwi-da."
            )
        pairs = [
            (restored(request.source, dict(request.items)), text)
            for request, candidates in zip(requests, hypotheses, strict=True)
            for text in self._texts(request, candidates)
        ]
        scores = iter(model.scores(*zip(*pairs, strict=True)))
        return [list(islice(scores, len(candidates))) for candidates in hypotheses]

    def _translation_of(
        self, request: Request, src_ids: list[int], candidates: Sequence[Hypothesis], qe: list[float]
    ) -> Translation:
        """Choose the translation of a line from its hypotheses, best first or as drawn. qe: their qualities, if any."""
        codec, items, texts = self.subwords.trg, dict(request.items), self._texts(request, candidates)
        value_of = dict(enumerate(qe or [hypothesis.normalised for hypothesis in candidates]))
        best = sorted(value_of, key=lambda n: -value_of[n])
        if self._by_utility:
            best = best[: math.ceil(len(best) / 2)] if qe else list(value_of)
            value_of = dict(zip(best, expected_utility([texts[n] for n in best]), strict=True))
            best.sort(key=lambda n: -value_of[n])
        first_with: dict[str, int] = {}
        for n in best:  # the same text can be drawn twice, or found in other subwords
            first_with.setdefault(texts[n], n)
        best = list(first_with.values())[: self.config.n_best]
        texts, utilities = [texts[n] for n in best], [value_of[n] for n in best] if self._by_utility else []
        qualities = [qe[n] for n in best] if qe else []
        hypotheses, unmet = [candidates[n] for n in best], self._unmet(request, texts[0])
        missing, doubled = list[str](), list[str]()
        if codec.protects:  # items that are missing, and items that occur too often
            ids = hypotheses[0].ids
            names = [name for i in ids if (name := codec.placeholder_of.get(i))]
            unprotected = codec.decode(ids, dict.fromkeys(codec.placeholders, " "))
            missing, doubled = came_back(restored(request.source, items), names, unprotected, items, codec.protects)
        if codec.whitespace == "unified":
            texts = [with_ends_of(request.source, text) for text in texts]
        return Translation(texts[0], texts, hypotheses, src_ids, utilities, qualities, unmet, items, missing, doubled)

    def _joined_translation(self, request: Request, split_line: Split, parts: list[Translation]) -> Translation:
        """Join the translations of the pieces of a line: its k-th is made of the k-th of each piece. Log-probabilities
        are added up, and the length penalty is that of the joined length."""
        searched = [part for part in parts if part.hypotheses]
        hypotheses = list[Hypothesis]()
        for row in by_rank([part.hypotheses for part in searched]):
            ids, score = long_lines.join_ids([piece.ids for piece in row]), math.fsum(piece.score for piece in row)
            divisor = float(self._settings.divisor(torch.tensor(len(ids) + 1)))
            hypotheses.append(Hypothesis(ids, score, score / divisor, all(piece.finished for piece in row)))
        texts = ["".join(long_lines.joined(split_line, row)) for row in by_rank([part.texts for part in parts]) or [[]]]
        if "\n" not in request.source:  # else it has several lines
            texts = [text.translate(_LINE_ENDS) for text in texts]
        utilities, qualities = (
            [math.fsum(row) / len(row) for row in by_rank(values)]
            for values in ([part.utilities for part in searched], [part.qualities for part in searched])
        )
        src_ids = long_lines.join_ids([part.src_ids for part in searched])
        unmet = self._unmet(request, texts[0][len(split_line.spaces[0]) :])
        missing = [item for part in parts for item in part.missing]
        doubled = [item for part in parts for item in part.doubled]
        line = Translation(texts[0], texts, hypotheses, src_ids, utilities, qualities, unmet)
        return replace(line, missing=missing, doubled=doubled, split=split_line, parts=parts)

    def _unmet(self, request: Request, text: str) -> list[str]:
        codec = self.subwords.trg
        # Restored items have the letters of the source; constraints have those that the model writes.
        return request.unmet(codec.normalised(text) if codec.protects else text) if request.asks else []

    def _copied(self, request: Request) -> Translation | None:
        """The translation of a line that no model has to read: "" for a blank line, a letterless line itself."""
        if is_blank(request.source):
            return Translation("", [""], [], [])
        if not self.config.copy_letterless or request.asks:
            return None
        text, trg_lang = restored(request.source, dict(request.items)), request.trg_lang or self._trg_lang
        is_copied = long_lines.is_letterless(text, self._src_lang, trg_lang)
        return Translation(text, [text], [], []) if is_copied else None

    def _request(self, line: str | Request) -> Request:
        """The request of a line, in the letters that the model writes, with placeholders for its items."""
        request = Request(line) if isinstance(line, str) else line
        if "\n" in request.source and not request.can_be_split:
            request = replace(request, source=request.source.replace("\n", " "))
        trg = self.subwords.trg
        request = request.normalised(trg) if request.asks else request
        return request.protected(kinds) if (kinds := self.subwords.src.protects) else request

    def _encode(self, request: Request) -> list[int]:
        """Ids of the source of a request with its tags, without EOS. Line feeds are read as spaces."""
        return self.codec_of(request).encode([request.source.replace("\n", " ")])[0]

    def batches(
        self, ids: Sequence[list[int]], requests: Sequence[Request] | None = None
    ) -> Iterator[tuple[Rows, list[list[Hypothesis]]]]:
        """Search for the hypotheses of rows of ids. Yields the numbers of the rows of a batch, and their hypotheses.

        requests: the request of each row; by default without constraints.
        """
        requests = requests or [Request("")] * len(ids)
        # A batch costs sentences x hypotheses x longest source, and the source ends with EOS.
        cost = np.array([(len(row) + 1) * self.config.n_candidate for row in ids], dtype=np.int64)
        for batch in length_batches(cost, self.config.max_tokens):
            yield batch, self._search([ids[n] for n in batch], [requests[n] for n in batch])

    def _search(self, ids: Sequence[list[int]], requests: Sequence[Request]) -> list[list[Hypothesis]]:
        """Search for the hypotheses of a batch; if the memory of the device is too small, half by half. Raises
        OutOfMemory if one sentence is too much, and RecipeError if phrases are required of samples."""
        with suppress_out_of_memory(), evaluating(self.model):
            return self._search_whole(ids, requests)
        if len(ids) == 1:
            instead = "" if self.model.device.type == "cpu" else ", or translate on the CPU: --device cpu"
            raise OutOfMemory(
                f"the memory of {self.model.device} is too small for one sentence of {len(ids[0])} subwords with "
                f"{self.config.n_candidate} hypotheses. Make decode.beam or decode.samples smaller{instead}."
            )
        half = len(ids) // 2
        return self._search(ids[:half], requests[:half]) + self._search(ids[half:], requests[half:])

    def _search_whole(self, ids: Sequence[list[int]], requests: Sequence[Request]) -> list[list[Hypothesis]]:
        config, settings, subwords, model = self.config, self._settings, self.subwords, self.model
        requests = [request.in_placeholders(subwords.src.protects) for request in requests]
        src_seq = pad(Ragged.of(ids), after=(EOS,)).to(model.device)
        n_src = torch.tensor([len(row) for row in ids])
        min_len = (config.min_len_a * n_src).long() + config.min_len_b
        max_len = (config.max_len_a * n_src).long() + config.max_len_b
        for n, request in enumerate(requests):
            if request.asks:  # leave room for the prefix and the required phrases
                phrases = [phrase for phrase, times, _ in request.required_phrases for _ in range(times)]
                constraints = [request.prefix, *phrases] if request.prefix else phrases
                max_len[n] += sum(map(len, subwords.trg.encode(constraints)))
        rules = None
        asks = any(request.asks for request in requests)
        if self._has_placeholders or config.no_repeat or int(min_len.max()) or asks:
            pieces, n_first = pieces_of(subwords.trg), config.samples or 1
            min_len = min_len.to(model.device)
            rules = Rules(pieces, requests, min_len=min_len, no_repeat=config.no_repeat, n_hypothesis=n_first)
        if config.samples:
            if any(request.requires for request in requests):
                raise RecipeError("required phrases need beam search: set decode.samples to 0.")
            narrow = partial(narrowed, **config.model_dump(include={"temperature", "top_k", "top_p", "epsilon"}))
            seeds = [[config.seed, *fingerprint(row)] for row in ids]
            return sample(model, src_seq, settings, max_len, n=config.samples, seeds=seeds, narrow=narrow, rules=rules)
        if self.fixed and rules is None:
            return self.fixed(src_seq, settings, max_len)
        return search(model, src_seq, settings, max_len, rules=rules)
