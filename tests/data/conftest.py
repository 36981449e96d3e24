"""Fixture `at`, a folder of corpora to prepare. Makes `tests.data` importable wherever pytest is started."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nmt.data.corpus import Prepared
from nmt.data.prepare import prepare
from nmt.errors import DataError
from nmt.recipe.options import Recipe

sys.path.insert(0, str(Path(__file__).parents[2]))


@pytest.fixture
def at(tmp_path, monkeypatch):
    """Temporary folder: at.write(name, content or rows); at.prepare(train, **data) -> report; at.refused; at.texts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")

    def write(name, content):
        if name.endswith((".parquet", ".arrow")) and isinstance(content, list | pa.Table):
            rows = content if isinstance(content, pa.Table) else pa.Table.from_pylist(content)
            if name.endswith(".parquet"):
                pq.write_table(rows, name)
            else:
                with pa.ipc.new_file(name, rows.schema) as writer:
                    writer.write_table(rows)
            return name
        if isinstance(content, list):
            content = "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in content)
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return name

    def prepare_corpora(train, *, valid=None, vocab_size=264, **data):
        valid, defaults = valid or {"src": "v.de", "trg": "v.en"}, {"alarms": "warn", "workers": 1}
        data = {"train": train if isinstance(train, list) else [train], "valid": [valid], **defaults, **data}
        recipe = Recipe.model_validate({"name": "test", "data": data, "subwords": {"vocab_size": vocab_size}})
        messages = []
        prepare(recipe, tmp_path / "out", overwrite=True, talk=messages.append)
        report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
        return SimpleNamespace(said=messages, recipe=recipe, **report)

    def refused(train, *expected, **options):
        with pytest.raises(DataError) as error:
            prepare_corpora(train, **options)
        for phrase in expected:
            assert phrase in str(error.value)
        assert not list(tmp_path.glob(".*")) and not (tmp_path / "out").exists()
        return str(error.value)

    def texts():
        return Prepared.open(tmp_path / "out").valid.texts()

    write("v.de", "eins zwei\n")
    write("v.en", "one two\n")
    return SimpleNamespace(write=write, prepare=prepare_corpora, refused=refused, texts=texts, folder=tmp_path)
