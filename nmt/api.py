"""Trained models in Python: `nmt.load(run).translate(lines)`. nmt-translate uses the same code.

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
from nmt.decoding.translator import Scored, Translator
from nmt.decoding.translator import Translation as BaseTranslation
from nmt.device import choose_device, set_up, try_device
from nmt.errors import DataError, MachineError, RecipeError, RunError, convert_errors, described
from nmt.files import runs_of
from nmt.models.base import SearchModel
from nmt.models.int8 import half_is_faster, prepacked, to_int8
from nmt.recipe.decode_options import DecodeConfig
from nmt.recipe.reader import changed, overrides_of
from nmt.run import USUAL_RATIOS, Run


def _evidence_field(name: str, doc: str) -> Any:
    """Property of a translation that reads a field of its evidence."""
    return property(lambda translation: translation._evidence_fields.get(name), doc=doc)


class Translation(BaseTranslation):
    """Translation of one line, with the fields that `nmt-translate --format jsonl` writes, under the same names.

    The fields are computed on first access. All but the flags need one more pass of the line through the model.
    A field that cannot be computed is None, such as the alignment of a model without attention to the source.
    """

    _origin: tuple["Model", Evidence, Request] | None = None

    tokens: list[str] | None = _evidence_field("tokens", "Its subwords and the end symbol.")
    token_log_probs: list[float] | None = _evidence_field("token_log_probs", "Log-probabilities by forced decoding.")
    source_tokens: list[str] | None = _evidence_field("source_tokens", "The subwords read, and the end symbol.")
    alignment: list[int | None] | None = _evidence_field("alignment", "Index in source_tokens of each token, or None.")
    word_alignment: str | None = _evidence_field("word_alignment", "Aligned words of source and translation: 0-0 1-2.")

    @classmethod
    def of(cls, result: BaseTranslation, line: str | Request, model: "Model", evidence: Evidence) -> "Translation":
        """Build a translation from the result of the search for a line."""
        translation = cls(*(getattr(result, field.name) for field in fields(BaseTranslation)))
        translation.__dict__["_origin"] = model, evidence, line if isinstance(line, Request) else Request(line)
        return translation

    @cached_property
    def flags(self) -> list[str]:
        """Names of the quality flags; empty for most translations."""
        _, evidence, request = self._checked_origin
        return flags_of(self, evidence.reasons(request, self))

    @property
    def log_prob(self) -> float:
        """Sum of token_log_probs."""
        return log_prob_of(self, self.token_log_probs)

    @cached_property
    def _evidence_fields(self) -> Fields:
        model, evidence, request = self._checked_origin
        model._handle_fork()
        ((computed, _),) = evidence.of([request], [self])
        return computed

    @property
    def _checked_origin(self) -> tuple["Model", Evidence, Request]:
        if self._origin is None:
            raise RunError("a copy of a translation has no model: use the translation that translate returned.")
        return self._origin


class Model:
    """One trained model, or an ensemble of several, with its vocabulary and recipe. Made by `load`.

    Several threads may use it at the same time.
    """

    def __init__(self, model: SearchModel, subwords: Subwords, runs: Sequence[Run], weights: Sequence[str]) -> None:
        self.model, self.subwords, self.run = model, subwords, runs[0]
        self.weights = tuple(weights)  # names of their folders, such as model or update-00012000
        recipes = [run.recipe() for run in runs]
        self.recipe = recipes[0]
        # The limits of an ensemble are lengths that every model saw in training.
        self._max_len = min(recipe.data.max_len for recipe in recipes)
        self._usual_src_len = min((length for run in runs if (length := run.usual_src_len())), default=None)
        self._usual_ratios = self.run.numbers(USUAL_RATIOS)
        self._models: dict[str, tuple[SearchModel, FixedSearch | None]] = {}  # by decode.precision
        self._lock, self._pid = threading.Lock(), os.getpid()

    def __repr__(self) -> str:
        data, n_param = self.recipe.data, sum(parameter.numel() for parameter in self.model.parameters())
        languages = f"{data.src_lang} to {data.trg_lang}"
        return f"<nmt.Model {self.run.folder}, {languages}, {n_param:,} parameters on {self.model.device}>"

    @convert_errors()
    def translate(
        self, lines: Iterable[str | Request], *, on_progress: Callable[[int], object] | None = None, **options: Any
    ) -> list[Translation]:
        """Translate each line, in order. A line may be a `nmt.Request`, which constrains its translation.

        options: options of the recipe's section `decode`, such as beam=4 or samples=64. The run's recipe has the
        values of options that are absent or None. on_progress: called with the number of lines done since the last
        call. The line break at the end of a line is ignored, so an open file can be passed. A text of several lines is
        translated line by line, unless phrases are required. A line of any length is translated whole.
        Raises RecipeError for unknown or contradictory options. Raises DataError for one text in place of several, for
        lines that are not text, and for unpaired surrogates.
        """
        texts, decode = list(_checked_texts(lines, "lines", str, Request)), self.decode(**options)
        translator = self.translator(decode)
        evidence = Evidence(translator, self.recipe.model_copy(update={"decode": decode}), self._usual_ratios)
        results = zip(texts, translator.translate(texts, on_progress), strict=True)
        return [Translation.of(result, line, self, evidence) for line, result in results]

    @convert_errors()
    def score(self, sources: Iterable[str | Request], translations: Iterable[str], **options: Any) -> list[Scored]:
        """Score given translations by forced decoding, one for each source. Line feeds in a text are read as spaces.

        A source may be a `nmt.Request` with a language and tags of its own. options: precision, max_tokens, trg_lang
        and tags have an effect here. Raises DataError, and the errors of `translate`.
        """
        requests = list(_checked_texts(sources, "sources", str, Request))
        targets = [text.replace("\n", " ") for text in _checked_texts(translations, "translations", str)]
        if len(requests) != len(targets):
            raise DataError(f"{len(requests):,} sources but {len(targets):,} translations: give one for each source.")
        for number, request in enumerate(requests, start=1):
            if isinstance(request, Request) and request.asks:
                raise DataError(
                    f"sources, number {number}: prefix, required and avoided constrain a search, but score scores a "
                    "given translation: leave them out."
                )
        return self.translator(self.decode(**options)).score(requests, targets)

    def decode(self, **options: Any) -> DecodeConfig:
        """Return the section `decode` of the run's recipe at loading time, with the options that are not None changed.

        Raises RecipeError, which names options by their keywords here.
        """
        try:
            return changed(self.recipe, overrides_of({"decode": options})).decode
        except RecipeError as error:
            raise RecipeError(str(error).replace("decode.", "")) from None

    def translator(self, decode: DecodeConfig) -> Translator:
        """Return a translator with these options. Raises MachineError for a model on a GPU in a forked process."""
        self._handle_fork()
        precision = decode.precision
        with self._lock:  # several threads must not convert the same model
            if precision not in self._models:
                # Layers without an int8 version run in bf16 if the processor is fast in bf16.
                keeps_fp32 = precision == "fp32" or (precision == "int8" and not half_is_faster())
                model = prepacked(self.model if keeps_fp32 else copy.deepcopy(self.model).to(torch.bfloat16))
                if precision == "int8":
                    to_int8(model)
                has_graphs = model.device.type == "cuda" and not isinstance(model, Ensemble)
                self._models[precision] = model, FixedSearch(model) if has_graphs else None
            model, fixed = self._models[precision]
        default_lang = self.recipe.data.trg_lang
        return Translator(
            model,
            self.subwords,
            decode,
            limits=limits_of(decode, max_len=self._max_len, usual_src_len=self._usual_src_len),
            tags_of=Tagging(decode, self.subwords.src.tags, default_lang, self.recipe.data.known_tags),
            languages=(self.recipe.data.src_lang, default_lang),
            fixed=fixed if decode.cuda_graphs else None,
        )

    def _handle_fork(self) -> None:
        """Compute with one thread in a forked process.

        The threads of the parent process are gone there, and OpenMP would wait for them for ever.
        """
        if os.getpid() == self._pid:
            return
        if self.model.device.type != "cpu":
            raise MachineError("the model was loaded on a GPU before a fork: call nmt.load in the child process.")
        torch.set_num_threads(1)
        self._lock, self._pid = threading.Lock(), os.getpid()


@convert_errors()
def load(
    run: str | Path | Sequence[str | Path], *, checkpoint: str | Sequence[str] | None = None, device: str = "auto"
) -> Model:
    """Load the model of a run folder for translation; several runs or checkpoints make an ensemble.

    run: one folder or several with the same vocabularies. checkpoint: names of checkpoints of a single run, such as
    update-00012000; by default the model that training chose. device: auto, cpu, cuda, cuda:1.
    Raises RunError for folders that are not runs, damaged runs and runs with different vocabularies. Raises
    MachineError for a device that cannot be used, and NmtError for an unknown device name or a checkpoint of a newer
    nmt.
    """
    paths = _as_list("run", run, "the path of a run folder", str, Path)
    runs = [Run(folder) for path in paths for folder in runs_of(Path(path))]
    names = [None] if checkpoint is None else _as_list("checkpoint", checkpoint, "the name of a checkpoint", str)
    if not runs or not names:
        raise RunError(f"no {'checkpoint' if runs else 'run folder'} to load: name at least one.")
    if len(runs) > 1 and names != [None]:
        raise RunError("checkpoints can be named for a single run only, but there are several runs: name one run.")
    torch_device = choose_device(str(device))
    subwords = runs[0].subwords()
    for other in runs[1:]:
        if other.subwords().sha256 != subwords.sha256:
            raise RunError(
                f"{other.folder} and {runs[0].folder} have different vocabularies, so they cannot form an ensemble. "
                "Train them on the same prepared data."
            )
    try_device(torch_device)
    set_up(torch_device.type)
    if torch_device.type == "cpu":
        ops.use_kernels(not ops.why_no_kernels())
    loaded = [run.load_model(torch_device, name, subwords) for run in runs for name in names]
    models, weights = [model for model, _ in loaded], [folder for _, folder in loaded]
    return Model(models[0] if len(models) == 1 else Ensemble(models).eval(), subwords, runs, weights)


def _as_list(name: str, argument: Any, expected: str, *types: type) -> list[Any]:
    """Return an argument, one value or several, as a list. Raises RunError for values of other types."""
    values = list(argument) if isinstance(argument, Iterable) and not isinstance(argument, (str, bytes)) else [argument]
    for value in values:
        if not isinstance(value, types):
            raise RunError(f"{name}: expected {expected}, or a list of them, found {described(value)}.")
    return values


def _checked_texts(texts: Iterable[Any], name: str, *types: type) -> Iterator[Any]:
    """Yield the texts without line ends. Raises DataError for values of other types, and for invalid Unicode."""
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise DataError(f"{name}: expected a list of texts, found {described(texts)}.")
    for number, text in enumerate(texts, start=1):
        if not isinstance(text, types):
            expected = " or ".join(kind.__name__ for kind in types)
            raise DataError(f"{name}, number {number}: expected {expected}, found {described(text)}.")
        parts = [text.source, text.prefix, *text.required, *text.avoided] if isinstance(text, Request) else [str(text)]
        try:
            "".join(parts).encode("utf-8")
        except UnicodeEncodeError as error:
            raise DataError(
                f"{name}, number {number}: U+{ord(error.object[error.start]):04X} is half of a surrogate pair, not "
                "valid text. If it was decoded from bytes, decode them as UTF-8."
            ) from None
        yield replace(text, source=without_end(text.source)) if isinstance(text, Request) else without_end(str(text))
