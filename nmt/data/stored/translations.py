"""The table of subwords and their translations that belongs to a run: counted when it is first asked for, and kept.

The file has the fields of `TranslationTable`.
"""

import hashlib
import sys
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from nmt.data.stored.translation_table import TranslationTable, translation_table
from nmt.data.vocabulary.subwords import Subwords
from nmt.errors import DataError, RunError
from nmt.files import replacing

_MARK = "sha256"  # in the file: of the table and the subwords that it is about


def translations_of(path: Path, folder: Path, subwords: Subwords) -> TranslationTable:
    """The table in a file, or else, and then put there, that of the training pairs in a folder of prepared data.

    Raises RunError where there is neither. A table that was damaged is made anew; one that cannot be kept is told.
    """
    found = _read(path, subwords)
    if found is None:
        found = _counted(path.parent, folder, subwords)
        tensors = {name: np.ascontiguousarray(part) for name, part in found._asdict().items()}
        try:
            with replacing(path) as file:
                file.write(save(tensors, {_MARK: _fingerprint(found, subwords)}))
        except OSError as error:
            text = f"nmt: note: {path}: cannot be kept ({error.strerror or error}), so it is counted again each time"
            print(text, file=sys.stderr)
    return found


def _read(path: Path, subwords: Subwords) -> TranslationTable | None:
    try:
        with safe_open(path, "numpy") as file:
            mark = (file.metadata() or {}).get(_MARK)
            table = TranslationTable(*(file.get_tensor(name) for name in TranslationTable._fields))
    except (OSError, SafetensorError):
        return None
    return table if mark == _fingerprint(table, subwords) else None


def _fingerprint(table: TranslationTable, subwords: Subwords) -> str:
    digest = hashlib.sha256(subwords.sha256.encode())
    for part in table:
        digest.update(f"{part.dtype} {part.shape} ".encode())
        digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()


def _counted(run: Path, folder: Path, subwords: Subwords) -> TranslationTable:
    from nmt.data.stored.corpus import Prepared  # which takes a while, and is needed once

    needed = "decode.shortlist needs the data that the run was trained on, once"
    try:
        data = Prepared.open(folder)
    except DataError as error:
        raise RunError(f"{needed}: {error} Or leave that option at 0.") from None
    if data.subwords.sha256 != subwords.sha256:
        raise RunError(
            f"{needed}, but {folder} has other subwords than the run: prepare the data again as it was, or leave that "
            "option at 0."
        )
    text = f"nmt: note: {run}: counting which subwords translate each other in {folder}, once for this run"
    print(text, file=sys.stderr)
    src, trg = subwords.src.n_vocab, subwords.trg.n_vocab
    return translation_table(data.train, src, trg, joint=subwords.joint, quiet=False)
