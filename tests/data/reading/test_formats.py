"""The same pairs in any form are the same data; what is no text in them is refused, or dropped and counted."""

import gzip
import json
import lzma
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nmt.data.corpus import Prepared
from nmt.data.prepare import prepare
from nmt.errors import DataError
from nmt.recipe.data_options import DataConfig, SubwordsConfig, TrainingCorpus, ValidationSet
from nmt.recipe.options import Recipe
from tests.data.awkward import AWKWARD
from tests.data.test_prepare import NO_FILTERS

AWKWARD_PAIRS = [(f"{n} {line}", f"{line} {n}") for n, line in enumerate(AWKWARD) if "\t" not in line]
# The mark comes first only where it is not the first of a file.
PAIRS = [(f'Satz "{n}" über {n % 7} Hunde', f"sentence '{n}' about {n % 7} dogs") for n in range(60)] + AWKWARD_PAIRS
SRC, TRG = ([pair[side] for pair in PAIRS] for side in (0, 1))


def lines_of(lines):
    return "".join(line + "\n" for line in lines).encode()


def write(path, content):
    path.write_bytes(content)
    return str(path)


def tsv(pairs=PAIRS, header=()):
    return lines_of(["\t".join(row) for row in [*([header] if header else []), *pairs]])


def jsonl(pairs=PAIRS):
    return lines_of([json.dumps({"de": src, "x": {"en": trg}, "n": 1.5}, ensure_ascii=False) for src, trg in pairs])


def table(src=SRC, trg=TRG, kind=None):
    kind = kind or pa.string()
    nested = pa.StructArray.from_arrays([pa.array(src, kind), pa.array(trg, kind)], ["de", "en"])
    return pa.table({"id": pa.array(range(len(src))), "translation": nested, "x.de": pa.array(src, kind)})


def parquet(path, rows=None, **kwargs):
    pq.write_table(table() if rows is None else rows, path, **kwargs)
    return str(path)


def arrow(path, rows=None, new=pa.ipc.new_file, **kwargs):
    rows = table() if rows is None else rows
    with new(str(path), rows.schema, **kwargs) as writer:
        writer.write_table(rows, max_chunksize=17)
    return str(path)


TWO = {"src_column": "translation.de", "trg_column": "translation.en"}


def corpora(folder):
    """One corpus in every form: name -> options of CorpusFiles."""
    one, two = {"src_column": 1, "trg_column": 2}, {"src_column": "de", "trg_column": "x.en"}
    half = len(PAIRS) // 2
    write(folder / "part.1.de", lines_of(SRC[:half]))
    write(folder / "part.1.en", lines_of(TRG[:half]))
    write(folder / "part.2.de.gz", gzip.compress(lines_of(SRC[half:])))
    write(folder / "part.2.en.gz", lzma.compress(lines_of(TRG[half:])))  # not by the name: see below
    (folder / "part.2.en.gz").rename(folder / "part.2.en.xz")
    (folder / "set").mkdir()
    parquet(folder / "set" / "train.parquet")
    return {
        "text": {"src": write(folder / "a.de", lines_of(SRC)), "trg": write(folder / "a.en", lines_of(TRG))},
        "list": {
            "src": [str(folder / "part.1.de"), str(folder / "part.2.de.gz")],
            "trg": [str(folder / "part.1.en"), str(folder / "part.2.en.xz")],
        },
        "pattern": {"src": str(folder / "part.*.de*"), "trg": str(folder / "part.*.en*")},
        "crlf and mark": {
            "src": write(folder / "c.de", b"\xef\xbb\xbf" + lines_of(SRC).replace(b"\n", b"\r\n")),
            "trg": write(folder / "c.en", lines_of(TRG)[:-1]),
        },
        "tsv": {"file": write(folder / "a.tsv", tsv()), **one},
        "tsv, more columns": {
            "file": write(folder / "b.tsv.gz", gzip.compress(tsv([(t, "0.5", s) for s, t in PAIRS]))),
            "src_column": 3,
            "trg_column": 1,
        },
        "tsv, header": {
            "file": write(folder / "h.txt", b"\xef\xbb\xbf" + tsv(header=("de", "en"))),
            "format": "tsv",
            "src_column": "de",
            "trg_column": "en",
        },
        "tsv, one side": {"src": str(folder / "a.tsv"), "src_column": 1, "trg": str(folder / "a.en")},
        "jsonl": {"file": write(folder / "a.jsonl", jsonl()), **two},
        "jsonl, two files": {
            "file": [write(folder / "1.jsonl", jsonl(PAIRS[:9])), write(folder / "2.jsonl", jsonl(PAIRS[9:]))],
            **two,
        },
        "parquet": {"file": parquet(folder / "a.parquet", row_group_size=23), **TWO},
        "parquet, dot in a name": {
            "src": parquet(folder / "b.parquet"),
            "src_column": "x.de",
            "trg": str(folder / "a.en"),
        },
        "parquet, bytes": {"file": parquet(folder / "y.parquet", table(kind=pa.binary())), **TWO},
        "arrow file": {"file": arrow(folder / "a.arrow"), **TWO},
        "arrow stream": {"file": arrow(folder / "s.arrow", new=pa.ipc.new_stream), **TWO},
        "arrow, views": {"file": arrow(folder / "v.arrow", table(kind=pa.string_view())), **TWO},
        "arrow, dictionaries": {
            "file": arrow(
                folder / "d.arrow",
                pa.table({"a": pa.array(SRC).dictionary_encode(), "b": pa.array(TRG).dictionary_encode()}),
            ),
            "src_column": "a",
            "trg_column": "b",
        },
        "dataset": {"dataset": str(folder / "set"), "split": "train", **TWO},
    }


FORMS = [
    *("text", "list", "pattern", "crlf and mark", "tsv", "tsv, more columns", "tsv, header"),
    *("tsv, one side", "jsonl", "jsonl, two files", "parquet", "parquet, dot in a name"),
    *("parquet, bytes", "arrow file", "arrow stream", "arrow, views", "arrow, dictionaries"),
    "dataset",
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The corpus in every form, and what was prepared from the plainest."""
    folder = tmp_path_factory.mktemp("forms")
    of = corpora(folder)
    assert sorted(of) == sorted(FORMS)
    prepare(recipe_of(of["text"], of["text"]), folder / "out")
    return SimpleNamespace(folder=folder, of=of, out=folder / "out")


def recipe_of(train, valid, **data):
    return Recipe(
        name="test",
        data=DataConfig(
            train=[TrainingCorpus(**train)],
            valid=[ValidationSet(**valid)],
            alarms="warn",
            workers=1,
            **NO_FILTERS,
            **data,
        ),
        subwords=SubwordsConfig(vocab_size=300),
    )


@pytest.fixture
def small(tmp_path):
    """A function that prepares a small corpus with good text to validate on, and returns its report."""

    def run(*, valid=None, **train):
        text = {"src": write(tmp_path / "v.de", b"eins\n"), "trg": write(tmp_path / "v.en", b"one\n")}
        data = {name: train.pop(name) for name in ("bad_records", "bad_utf8", "max_len") if name in train}
        prepare(recipe_of(train or text, valid or text, **data), tmp_path / "out", overwrite=True)
        return json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))

    return run


@pytest.mark.parametrize("form", FORMS)
def test_the_same_pairs_in_any_form_are_the_same_data(made, tmp_path, form, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    recipe = recipe_of(made.of[form], made.of[form])
    prepare(recipe, tmp_path / "out")
    for name in ("train.arrow", "valid.arrow", "subwords.json"):
        assert (tmp_path / "out" / name).read_bytes() == (made.out / name).read_bytes(), name
    said = []
    prepare(recipe, tmp_path / "out", talk=said.append)
    assert "nothing to do" in said[-1]
    assert not list(tmp_path.glob(".*"))


def test_what_was_prepared_has_every_character_that_was_written(made):
    data = Prepared.open(made.out)
    assert data.valid.texts() == (SRC, TRG) and data.train.n_pair == len(PAIRS)


def test_another_column_is_other_data(small, tmp_path):
    path = write(tmp_path / "a.tsv", b"ein Hund\ta dog\tun chien\n" * 9)
    small(file=path, src_column=1, trg_column=2)
    text = {"src": str(tmp_path / "v.de"), "trg": str(tmp_path / "v.en")}
    for other in ({"src_column": 1, "trg_column": 3}, {"src_column": 1, "trg_column": 2, "header": True}):
        with pytest.raises(DataError, match=r"a\.tsv is new.*--overwrite"):
            prepare(recipe_of({"file": path, **other}, text), tmp_path / "out")
