"""Trained models in Python: `nmt.load(run).translate(lines)`. nmt-translate goes the same way.

model = nmt.load("runs/mine")
for translation in model.translate(["Ein Hund läuft.", "Guten Tag!"], beam=4):
    print(translation.text, translation.score)
"""

import copy
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from nmt import ops
from nmt.data.lines import without_end
from nmt.data.placeholders import Tagging
from nmt.data.subwords import Subwords
from nmt.decoding.evidence import Evidence, Fields, log_prob_of
from nmt.decoding.fixed_search import FixedSearch
from nmt.decoding.long_lines import limits_of
from nmt.decoding.request import Request
from nmt.decoding.scorer import Ensemble
from nmt.decoding.suspicion import flags_of
from nmt.decoding.translation import Scored
from nmt.decoding.translation import Translation as Found
from nmt.decoding.translator import Translator
from nmt.device import choose_device, set_up, try_device
from nmt.errors import DataError, MachineError, RecipeError, RunError, convert_errors, shown
from nmt.files import runs_of
from nmt.models.base import SearchModel
from nmt.models.int8 import half_is_faster, prepacked, to_int8
from nmt.recipe.decode_options import DecodeConfig
from nmt.recipe.reader import changed, overrides_of
from nmt.run import Run


def _told_field(name: str, doc: str) -> Any:
    """Property of a translation that is computed from evidence."""
    return property(lambda translation: translation._told.get(name), doc=doc)


class Translation(Found):
    """The answer to one line, and what `nmt-translate --format jsonl` tells of it, under the same names.

    This is computed when it is first asked for, all but the flags by one more pass of the line through the model. None
    is what cannot be computed, as alignments where target words do not look at the source.
    """

    _origin: tuple["Model", Evidence, Request] | None = None

    tokens: list[str] | None = _told_field("tokens", "Its subwords and the end.")
    token_log_probs: list[float] | None = _told_field("token_log_probs", "Log-probabilities by forced decoding.")
    source_tokens: list[str] | None = _told_field("source_tokens", "The subwords that the model read, and the end.")
    alignment: list[int | None] | None = _told_field(
        "alignment", "For each of the tokens its place in source_tokens, from 0; None for the end."
    )
    word_alignment: str | None = _told_field("word_alignment", "Words that belong together: 0-0 1-2.")

    @classmethod
    def of(cls, found: Found, line: str | Request, model: "Model", evidence: Evidence) -> "Translation":
        """Make it of what the search found for a line."""
        one = cls(*(getattr(found, part.name) for part in fields(Found)))
        one.__dict__["_origin"] = model, evidence, line if isinstance(line, Request) else Request(line)
        return one

    @cached_property
    def flags(self) -> list[str]:
        """Quality flags by name; mostly none."""
        _, evidence, request = self._known
        return flags_of(self, evidence.reasons(request, self))

    @property
    def log_prob(self) -> float:
        """Sum of token_log_probs."""
        return log_prob_of(self, self.token_log_probs)

    @cached_property
    def _told(self) -> Fields:
        model, evidence, request = self._known
        model._mind_fork()
        ((found, _),) = evidence.of([request], [self])
        return found

    @property
    def _known(self) -> tuple["Model", Evidence, Request]:
        if self._origin is None:
            raise RunError("a copy of a translation has no model: ask the one that translate returned.")
        return self._origin


class Model:
    """One trained model, or an ensemble of several, with its vocabulary and recipe. Made by `load`.

    It may be used by several threads at once.
    """

    def __init__(self, model: SearchModel, subwords: Subwords, runs: Sequence[Run], weights: Sequence[str]) -> None:
        self.model, self.subwords, self.run = model, subwords, runs[0]
        self.weights = tuple(weights)  # names of the folders that they are from, like model or update-00012000
        recipes = [run.recipe() for run in runs]
        self.recipe = recipes[0]
        # An ensemble has seen what all of its models have seen.
        self._max_len = min(recipe.data.max_len for recipe in recipes)
        self._usual_src_len = min((length for run in runs if (length := run.usual_src_len())), default=None)
        self._usual_ratios = self.run.usual_ratios()
        self._ready: dict[str, SearchModel] = {}  # by decode.precision
        self._fixed: dict[str, FixedSearch] = {}  # likewise
        self._making, self._process = threading.Lock(), os.getpid()

    def __repr__(self) -> str:
        data, n_param = self.recipe.data, sum(one.numel() for one in self.model.parameters())
        of = f"{self.run.folder}, {data.src_lang} to {data.trg_lang}"
        return f"<nmt.Model {of}, {n_param:,} parameters on {self.model.device}>"

    @convert_errors()
    def translate(
        self, lines: Iterable[str | Request], *, on_progress: Callable[[int], object] | None = None, **options: Any
    ) -> list[Translation]:
        """One translation for each line, in order; a `nmt.Request` says what its translation has to be like.

        options: those of the recipe's section `decode`: beam=4, samples=64, …; what is not named or None is as the
        run's recipe says. on_progress: called with the number of lines done since the last call. The end of a line is
        no text, so that the lines of an open file can be given as they are. Lines within a text are translated apart
        and joined by its line feeds, unless phrases are required. A line of any length is translated whole.
        Raises RecipeError for options that do not exist or do not go together, and DataError for one text in place of
        several, for lines that are no text, and for halves of characters.
        """
        texts, decode = list(_checked(lines, "lines")), self.decode(**options)
        translator = self.translator(decode)
        evidence = Evidence(translator, self.recipe.model_copy(update={"decode": decode}), self._usual_ratios)
        found = zip(texts, translator.translate(texts, on_progress), strict=True)
        return [Translation.of(one, line, self, evidence) for line, one in found]

    @convert_errors()
    def score(self, sources: Iterable[str | Request], translations: Iterable[str], **options: Any) -> list[Scored]:
        """Score given translations by forced decoding, one for each source. Line feeds in a text are read as spaces.

        A source may be a `nmt.Request` with a language and tags of its own. options: precision, max_tokens, trg_lang
        and tags have a say here. Raises DataError, and what `translate` raises.
        """
        given = list(_checked(sources, "sources"))
        wanted = [one.replace("\n", " ") for one in _checked(translations, "translations", str)]
        if len(given) != len(wanted):
            raise DataError(f"{len(given):,} sources but {len(wanted):,} translations: give one for each source.")
        for number, one in enumerate(given, start=1):
            if isinstance(one, Request) and one.asks:
                raise DataError(
                    f"sources, number {number}: prefix, required and avoided ask something of a translation that is "
                    "there already: leave them out."
                )
        return list(self.translator(self.decode(**options)).score(given, wanted))

    def decode(self, **options: Any) -> DecodeConfig:
        """The section `decode` of the run's recipe as it was when it was loaded, with some options changed, those that
        are not None. Raises RecipeError, which names options as they are named here.
        """
        try:
            return changed(self.recipe, overrides_of({"decode": options})).decode
        except RecipeError as error:
            raise RecipeError(str(error).replace("command line: ", "").replace("decode.", "")) from None

    def translator(self, decode: DecodeConfig) -> Translator:
        """Return a translator with these options. Raises MachineError on a GPU in a process that was forked since."""
        self._mind_fork()
        usual_lang, model = self.recipe.data.trg_lang, self._ready_for(decode.precision)
        return Translator(
            model,
            self.subwords,
            decode,
            limits=limits_of(decode, max_len=self._max_len, usual_src_len=self._usual_src_len),
            tags_of=Tagging(decode, self.subwords.src.tags, usual_lang, self.recipe.data.known_tags),
            languages=(self.recipe.data.src_lang, usual_lang),
            fixed=self._fixed_for(model, decode),
        )

    def _mind_fork(self) -> None:
        """Have a forked process compute with one thread: those of the process before it are gone, and OpenMP would wait
        for them for ever.
        """
        if os.getpid() == self._process:
            return
        if self.model.device.type != "cpu":
            raise MachineError("the model was loaded on a GPU before a fork: call nmt.load in the child.")
        torch.set_num_threads(1)
        self._making, self._process = threading.Lock(), os.getpid()

    def _fixed_for(self, model: SearchModel, decode: DecodeConfig) -> FixedSearch | None:
        if not decode.cuda_graphs or model.device.type != "cuda" or isinstance(model, Ensemble):
            return None
        with self._making:
            return self._fixed.setdefault(decode.precision, FixedSearch(model))

    def _ready_for(self, precision: str) -> SearchModel:
        with self._making:  # once, whichever thread comes first
            if precision not in self._ready:
                # What int8 leaves to others runs in bf16 where the processor is fast in that.
                as_it_is = precision == "fp32" or (precision == "int8" and not half_is_faster())
                model = prepacked(self.model if as_it_is else copy.deepcopy(self.model).to(torch.bfloat16))
                if precision == "int8":
                    model = copy.deepcopy(model) if model is self.model else model
                    to_int8(model)
                self._ready[precision] = model
            return self._ready[precision]


@convert_errors()
def load(
    run: str | Path | Sequence[str | Path], *, checkpoint: str | Sequence[str] | None = None, device: str = "auto"
) -> Model:
    """The model of a run folder, ready to translate; an ensemble if there are several runs or checkpoints.

    run: one folder or several, whose vocabularies must be the same. checkpoint: names of checkpoints of a single run,
    like update-00012000; by default the model that training chose. device: auto, cpu, cuda, cuda:1.
    Raises RunError for what is no run, is damaged, or does not belong together; MachineError for a device
    that cannot be used, NmtError for the name of none.
    """
    named = _each("run", run, "the path of a run folder", str, Path)
    runs = [Run(folder) for one in named for folder in runs_of(Path(one))]
    names = [None] if checkpoint is None else _each("checkpoint", checkpoint, "the name of a checkpoint", str)
    if not runs or not names:
        raise RunError(f"no {'checkpoint' if runs else 'run folder'} to load: name one at least.")
    if len(runs) > 1 and names != [None]:
        raise RunError("checkpoints can be named of one run only, but there are several runs: name one of them.")
    place = choose_device(str(device))
    subwords = runs[0].subwords()
    for other in runs[1:]:
        if other.subwords().sha256 != subwords.sha256:
            raise RunError(
                f"{other.folder} and {runs[0].folder} have different vocabularies, so they cannot translate together. "
                "Train them on the same prepared data."
            )
    try_device(place)
    set_up(place.type)
    if place.type == "cpu":
        ops.use_kernels(not ops.kernels_here().why_not)
    loaded = [one.load_model(place, name, subwords) for one in runs for name in names]
    models, weights = [model for model, _ in loaded], [folder for _, folder in loaded]
    return Model(models[0] if len(models) == 1 else Ensemble(models).eval(), subwords, runs, weights)


def _each(name: str, given: Any, wanted: str, *kinds: type) -> list[Any]:
    """One thing or several of these kinds, as a list. Raises RunError for others."""
    found = list(given) if isinstance(given, Iterable) and not isinstance(given, (str, bytes)) else [given]
    for one in found:
        if not isinstance(one, kinds):
            raise RunError(f"{name}: expected {wanted}, or a list of them, found {_described(one)}.")
    return found


def _checked(texts: Iterable[Any], name: str, *kinds: type) -> Iterator[Any]:
    """Give the texts one by one, less the end of their line. Raises DataError for what is none or cannot be bytes.

    name: of the argument. kinds: what a text may be, by default also a request.
    """
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        found = f"one, {_described(texts)}: put it in a list" if isinstance(texts, str | bytes) else _described(texts)
        raise DataError(f"{name}: expected a list of texts, found {found}.")
    for number, one in enumerate(texts, start=1):
        if not isinstance(one, kinds or (str, Request)):
            wanted = "text" if kinds else "text or a nmt.Request of texts"
            raise DataError(f"{name}, number {number}: expected a {wanted}, found {_described(one)}.")
        parts = [one.source, one.prefix, *one.required, *one.avoided] if isinstance(one, Request) else [str(one)]
        for part in parts:
            try:
                part.encode("utf-8")
            except UnicodeEncodeError as error:
                raise DataError(
                    f"{name}, number {number}: character {error.start + 1} is U+{ord(part[error.start]):04X}, half of "
                    "a character, which no text has: where bytes were decoded, decode them as UTF-8."
                ) from None
        yield replace(one, source=without_end(one.source)) if isinstance(one, Request) else without_end(str(one))


def _described(found: object) -> str:
    return f"{shown(found)} of type {type(found).__name__}"
