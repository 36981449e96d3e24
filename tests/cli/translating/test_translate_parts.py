"""Ranks that share a file write together what one process writes, whole and once, whoever is last and whoever dies."""

import argparse
import os
import signal

import pytest
from fault_process import Child
from made_run import HASTY

from nmt.cli.translate import main
from nmt.cli.translating import journal as translate_parts
from nmt.cli.translating.journal import Journal, ranks_of
from nmt.errors import NmtError

LINES = ["the ship", "für Übung", "the ship", "", "in May", "für Übung", "the old ship left", "the ship", "left"]
SOURCE = "".join(line + "\n" for line in LINES).encode() + b"bad \xff\n"
MADE_OF = HASTY


@pytest.fixture(autouse=True)
def no_bar(monkeypatch):
    """What is said is compared, and on a slow machine a bar would get between."""
    monkeypatch.setattr("nmt.progress.EVERY", 1e9)


def args_of(rank=None, ranks=None, **others):
    return argparse.Namespace(rank=rank, ranks=ranks, **{"input": "in", "output": "out", "device": "cpu", **others})


@pytest.mark.parametrize(
    ("flags", "environment", "found"),
    [
        ((None, None), {}, (0, 1)),
        ((2, 4), {}, (2, 4)),
        ((None, 1), {}, (0, 1)),
        ((None, None), {"RANK": "1", "WORLD_SIZE": "3"}, (1, 3)),
        ((None, 1), {"RANK": "1", "WORLD_SIZE": "3"}, (0, 1)),
        ((None, None), {"RANK": "0", "WORLD_SIZE": "1"}, (0, 1)),
    ],
)
def test_the_rank_is_given_or_known_from_torchrun(flags, environment, found):
    assert ranks_of(args_of(*flags), environment) == found


@pytest.mark.parametrize(
    ("args", "environment", "message"),
    [
        (args_of(1), {}, "--rank needs --ranks"),
        (args_of(None, 3), {}, "--ranks 3 needs --rank"),
        (args_of(3, 3), {}, "from 0 to 2"),
        (args_of(0, 2, output=None), {}, "name it with --input and --output"),
        (args_of(0, 2, input=None), {}, "name it with --input and --output"),
    ],
)
def test_ranks_that_make_no_sense_are_refused(args, environment, message):
    with pytest.raises(NmtError, match=message):
        ranks_of(args, environment)


@pytest.mark.parametrize("text", ["0", "-1", "two", "²", "array"])
def test_a_number_of_ranks_that_is_none_is_refused(text, capsys):
    assert main(["x", "--rank", "0", f"--ranks={text}"]) == 2
    assert "is not 1, 2, ..." in capsys.readouterr().err


def test_a_gpu_of_its_own_for_each_rank_of_torchrun():
    args = args_of(device="cuda")
    ranks_of(args, {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"})
    assert args.device == "cuda:1"


@pytest.fixture
def place(tmp_path):
    (tmp_path / "in").write_bytes(SOURCE)
    return tmp_path


def flags_of(place, rank, n_rank, *more):
    ranks = ["--rank", rank, "--ranks", n_rank] if n_rank > 1 else []
    return [
        *map(str, ["-i", place / "in", "-o", place / "out", "--format", "jsonl", "--decode.window", 2, *ranks, *more])
    ]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_ranks_in_any_order_write_what_one_process_writes_and_the_last_one_reports(translate, place, order):
    (place / "ref").write_bytes(SOURCE.replace(b"\xff", b"?"))
    report = ("--ref", place / "ref", "--examples", 2, "--attention", place / "a.html", "--overwrite")
    report += ("--alignments", place / "links")
    _, wanted_err = translate(*flags_of(place, 0, 1, *report))
    wanted, wanted_picture, wanted_links = ((place / name).read_bytes() for name in ("out", "a.html", "links"))
    (place / "out").unlink()
    (place / "links").unlink()
    for rank in order:
        _, err = translate(*flags_of(place, rank, 3, *report))
        if rank != order[-1]:
            assert (
                not (place / "out").exists()
                and not (place / "links").exists()
                and "this share is done; not yet that of rank " in err
            )
            assert "BLEU" not in err and "UTF-8" not in err
    assert (place / "out").read_bytes() == wanted and (place / "a.html").read_bytes() == wanted_picture
    assert (place / "links").read_bytes() == wanted_links and wanted_links.count(b"\n") == len(LINES) + 1
    assert err == wanted_err
    assert sorted(path.name for path in place.iterdir()) == ["a.html", "in", "links", "out", "ref"]


def test_a_rank_has_nothing_to_do_twice(translate, place, monkeypatch):
    translate(*flags_of(place, 1, 2))
    monkeypatch.setattr("nmt.cli.translating.workers.LineTranslator.results", lambda *_: 1 / 0)
    _, err = translate(*flags_of(place, 1, 2))
    assert "not yet that of rank 0 of 2" in err
    assert sorted(path.name for path in place.iterdir()) == ["in", "out.journal-1-of-2"]


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def start(folder, place, rank, n_rank, harm=lambda: None):
    def body():
        harm()
        return main([folder, *flags_of(place, rank, n_rank)])

    return Child(body, place.parent / f"talk-{place.name}-{rank}", {"TOKENIZERS_PARALLELISM": "false"})


@pytest.mark.parametrize("where", ["in its share", "while it joins"])
def test_a_rank_that_dies_and_is_started_again_goes_on(folder, translate, place, where):
    translate(*flags_of(place, 0, 1))
    wanted = (place / "out").read_bytes()
    (place / "out").unlink()
    translate(*flags_of(place, 0, 2))

    def harm():
        if where == "in its share":
            count = iter(range(99))
            real = Journal.add
            Journal.add = lambda *args: (die if next(count) == 1 else real)(*args)
        else:
            translate_parts.JoinedJournals.take = die

    ended = start(folder, place, 1, 2, harm).go().wait()
    assert ended.code == 137, ended.said
    assert not (place / "out").exists()
    rank = 0 if where == "while it joins" else 1  # any rank can do that
    translate(*flags_of(place, rank, 2))
    assert (place / "out").read_bytes() == wanted
    assert sorted(path.name for path in place.iterdir()) == ["in", "out"]


def test_parts_that_do_not_belong_together_are_refused(translate, place):
    translate(*flags_of(place, 0, 2))
    _, err = translate(*flags_of(place, 1, 2, "--decode.beam", 1), code=2)
    assert "out.journal-0-of-2 was made with another model or other options" in err
    (place / "in").write_bytes(b"something else\n" + SOURCE)
    _, err = translate(*flags_of(place, 1, 2), code=2)
    assert "out.journal-0-of-2 answers another input" in err and not (place / "out").exists()
