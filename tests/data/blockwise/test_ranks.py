"""Ranks that prepare together make what one process makes, or end by name and leave nothing half made."""

import gzip
import json
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from nmt.cli.preprocess import main
from nmt.data.blockwise import blocks, crew
from nmt.data.blockwise.block_index import BlockReader, indexed
from nmt.data.blockwise.blocks import blocks_of, cut_lines
from nmt.data.reading.fields import Reading
from nmt.data.reading.sources import Source, Text
from nmt.data.sharing import meeting
from nmt.data.sharing.meeting import Meeting, Ranks
from nmt.errors import DataError, MachineError, NmtError
from nmt.recipe.data_options import TrainingCorpus
from nmt.recipe.reader import write_recipe
from tests.data.blockwise.test_blocks import nasty
from tests.data.test_prepare import SRC, TRG, bytes_of, recipe_in, write

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Blocks of few pairs, so that every rank has some."""
    monkeypatch.setattr(blocks, "N_PAIR", 30)
    monkeypatch.setattr(meeting, "_POLL", 0.02)
    monkeypatch.setattr(meeting, "_MOMENT", 0.3)


def rich_recipe(folder, **options):
    """Corpora of every kind: repetitions within and across, a leak, shifted lines, tags, a mixture, records."""
    rng = random.Random(3)
    n = [rng.randrange(len(SRC)) for _ in range(160)]
    src, trg = [SRC[k] for k in n] + nasty(1, 50), [TRG[k] for k in n] + nasty(2, 50)
    src, trg = [*src, *["das ist hier das Wort"] * 6], [*trg, *(f"this word is {letter}" for letter in "abcdef")]
    words = [f"{' '.join(rng.choices('abcdefgh', k=9))} {k}" for k in range(120)]
    both = [(f"Zeile {k} steht genau hier an Ort und Stelle,\nin {k % 3} Teilen", f"line {k}") for k in range(70)]
    pairs = [{"a": a, "b": f"{b} is here, just in this place, of a few parts"} for a, b in both]
    (folder / "r.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")
    (folder / "z.de.gz").write_bytes(gzip.compress("".join(f"{line}\n" for line in TRG[::2]).encode()))
    (folder / "z.en.gz").write_bytes(gzip.compress("".join(f"{line}\n" for line in SRC[::2]).encode()))
    train = [
        TrainingCorpus(src=write(folder / "a.de", src), trg=write(folder / "a.en", trg), tags=["web"], weight=2.0),
        TrainingCorpus(src=write(folder / "b.de", words), trg=write(folder / "b.en", [*words[2:], "x", "y"])),
        TrainingCorpus(file=str(folder / "r.jsonl"), src_column="a", trg_column="b", max_ratio_spread=2.5),
        TrainingCorpus(src=str(folder / "z.de.gz"), trg=str(folder / "z.en.gz")),
    ]
    options = {"drop_near_duplicates": True, "max_translations": 3, "max_len": 70, "temperature": 2.0, **options}
    return recipe_in(folder, valid=(SRC[:20], TRG[:20]), train=train, **options)


def start(recipe, out, rank, n_rank, *flags):
    """A rank as a thread; its exit code is put into the list that comes back with it."""
    path, codes = Path(out).parent / f"{rank}.{n_rank}.{time.monotonic_ns()}.yaml", []
    write_recipe(recipe, path)
    ranks = ["--rank", rank, "--ranks", n_rank] if n_rank > 1 else []
    args = [*map(str, [path, "--data.out", out, *ranks, "--rank-timeout", 30, *flags])]
    thread = threading.Thread(target=lambda: codes.append(main(args)), daemon=True)
    thread.start()
    return thread, codes


def wait_until_there(folder, rank):
    while not list(folder.glob(f".out.ranks/{rank}.*")):
        time.sleep(0.01)


def codes_of(started):
    for thread, _ in started:
        thread.join(60)
    return [codes[0] if codes else None for _, codes in started]


def together(recipe, out, n_rank, *flags):
    return codes_of([start(recipe, out, rank, n_rank, *flags) for rank in reversed(range(n_rank))])[::-1]


def content(folder):
    """All bytes; of the recipe without the name of the folder."""
    lines = (folder / "recipe.yaml").read_text().split("\n")
    return {**bytes_of(folder), "recipe.yaml": [line for line in lines if not line.startswith("  out: ")]}


def test_ranks_make_what_one_process_makes_and_only_the_first_tells_of_it(tmp_path, capfd):
    recipe = rich_recipe(tmp_path, protect=["number", "tag"])
    told = {}
    for n_rank in (1, 2, 3):
        assert together(recipe, tmp_path / f"out{n_rank}", n_rank) == [0] * n_rank
        told[n_rank] = capfd.readouterr().err
    assert content(tmp_path / "out1") == content(tmp_path / "out2") == content(tmp_path / "out3")
    facts = json.loads((tmp_path / "out1" / "report.json").read_text())
    assert facts["notes"]["line_feed"] == 70 and facts["usual_ratio"]
    assert any(one["stretches"] for one in facts["alignment"])
    assert {"near duplicate", "too long", "many translations"} < set(facts["dropped"])
    assert any("valid" in line for line in facts["warnings"] + facts["alarms"])
    for n_rank, text in told.items():
        assert text.count("training pairs:") == 1 and text.count("works for rank 0") == n_rank - 1
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")], "nothing is left beside it"


class AllAtOnce:
    """Stands in for a meeting and for helpers: whatever rank 0 says, the other ranks have done before it goes on."""

    def __init__(self, n_rank):
        self.ranks = Ranks(0, n_rank)

    def say(self, stage):
        for rank in range(1, self.ranks.n_rank):
            crew._do_share(stage, rank, lambda tasks: self.each("", tasks), lambda: None, None)

    def wait_for(self, ranks, part, until):
        return iter([{}] * len(ranks))

    def each(self, name, tasks):
        yield from ({"answer": f"to {task['n']}"} for task in tasks)


@pytest.mark.parametrize("n_rank", [1, 2, 3, 4, 5])
def test_answers_come_in_the_order_of_the_tasks_whatever_their_number(tmp_path, n_rank):
    others = AllAtOnce(n_rank)
    ours = crew.Crew(others, tmp_path).with_helpers(others)
    for n_task in range(2 * n_rank + 3):
        answers = list(ours.each("count", ({"n": n} for n in range(n_task))))
        assert answers == [{"answer": f"to {n}"} for n in range(n_task)]
    assert not list(tmp_path.iterdir()), "and nothing is left"


def test_what_was_prepared_by_one_process_is_nothing_to_do_for_two(tmp_path, capfd):
    recipe = recipe_in(tmp_path)
    assert together(recipe, tmp_path / "out", 1) == [0]
    before = content(tmp_path / "out")
    assert together(recipe, tmp_path / "out", 2) == [0, 0]
    assert "nothing to do" in capfd.readouterr().err and content(tmp_path / "out") == before
    assert together(recipe, tmp_path / "out", 2, "--overwrite") == [0, 0] and content(tmp_path / "out") == before
    flags = ("--overwrite", "--subwords.vocab_from", tmp_path / "out")
    assert together(recipe, tmp_path / "out", 2, *flags) == [0, 0]
    assert content(tmp_path / "out")["train.arrow"] == before["train.arrow"]
    assert "the rows of 200 pairs are taken over" in capfd.readouterr().err


def test_a_check_by_two_ranks_writes_the_page_of_one(tmp_path):
    recipe, pages = recipe_in(tmp_path, valid=(SRC[:20], TRG[:20])), []
    for n_rank in (1, 2):
        pages.append(tmp_path / f"{n_rank}.html")
        assert together(recipe, tmp_path / "out", n_rank, "--check", "--report", pages[-1])[0] == 3
    assert pages[0].read_bytes() == pages[1].read_bytes() and not (tmp_path / "out").exists()


def test_a_rank_that_never_comes_is_named_and_nothing_is_written(tmp_path, capfd):
    recipe = recipe_in(tmp_path)
    started = [start(recipe, tmp_path / "out", 2, 3)]
    wait_until_there(tmp_path, "2-of-3")
    # Longer than rank 2 takes to answer on a machine that is busy.
    started.append(start(recipe, tmp_path / "out", 0, 3, "--rank-timeout", 4))
    assert codes_of(started) == [1, 1]
    told = capfd.readouterr().err
    assert "rank 0 of 3 waited 4 s for rank 1 of 3, which did not come" in told
    assert "rank 2 of 3: rank 0 (process " in told and not (tmp_path / "out").exists()
    assert codes_of([start(recipe, tmp_path / "out", 1, 2, "--rank-timeout", 1)]) == [1]
    assert "rank 1 of 2 waited 1 s for rank 0 of 2" in capfd.readouterr().err


def test_ranks_with_other_recipes_or_flags_are_refused_by_what_differs(tmp_path, capfd):
    one, other = recipe_in(tmp_path), recipe_in(tmp_path, max_len=99)
    assert codes_of([start(one, tmp_path / "out", 0, 2), start(other, tmp_path / "out", 1, 2)]) != [0, 0]
    told = capfd.readouterr().err
    assert "was started otherwise: data.max_len: " in told and not (tmp_path / "out").exists()
    started = [start(one, tmp_path / "out", 0, 2), start(one, tmp_path / "out", 1, 2, "--overwrite")]
    assert 0 not in codes_of(started) and "overwrite: " in capfd.readouterr().err
    assert together(one, tmp_path / "out", 2) == [0, 0]


def test_workers_may_differ(tmp_path):
    one, other = recipe_in(tmp_path), recipe_in(tmp_path, workers=2)
    assert codes_of([start(one, tmp_path / "out", 0, 2), start(other, tmp_path / "out", 1, 2)]) == [0, 0]


def test_other_versions_of_the_program_are_refused(tmp_path):
    ranks = [Meeting(tmp_path / "out", Ranks(n, 2), {"nmt": str(n)}, 5.0) for n in range(2)]
    with pytest.raises(DataError, match="nmt: 1 there, 0 here"), ranks[0], ranks[1]:
        ranks[0].gather()


def test_a_rank_that_was_started_twice_is_refused(tmp_path):
    def rank(number, patience=5.0):
        return Meeting(tmp_path / "out", Ranks(number, 2), {}, patience)

    with pytest.raises(NmtError, match="rank 1 was started twice"), rank(0) as zero, rank(1), rank(1):
        zero.gather()
    with rank(0) as zero, rank(1) as one:
        zero.gather()
        one.join()
        with pytest.raises(NmtError, match="one too many: was the command started twice"), rank(1) as another:
            another.join()
        with pytest.raises(NmtError, match="rank 0 was started twice"), rank(0) as another:
            another.gather()
        three = Meeting(tmp_path / "out", Ranks(1, 3), {}, 5.0)
        with pytest.raises(NmtError, match="is one of 2 that make"), three:
            three.join()
        one.__exit__(None, None, None)


def test_whoever_waits_for_several_hears_of_the_one_that_fails(tmp_path):
    zero, one, two = (Meeting(tmp_path / "out", Ranks(n, 3), {}, 5.0) for n in range(3))
    with pytest.raises(MachineError, match=r"its part of rank 2 \(.*\), which ended: broken"), zero, one, two:
        zero.gather()
        one.join()
        two.join()
        two.say(error="broken")
        list(zero.wait_for([1, 2], "its part", lambda seen: "done" in seen))


def test_what_dead_ranks_left_is_not_taken_for_ranks(tmp_path):
    place = tmp_path / ".out.ranks"
    with Meeting(tmp_path / "out", Ranks(1, 2), {}, 5.0) as dead:
        dead.say(error="it is over")
        left = {path.name: path.read_bytes() for path in place.iterdir()}
    place.mkdir()
    for name, text in left.items():
        (place / name).write_bytes(text)
    late = Meeting(tmp_path / "out", Ranks(0, 2), {}, 0.5)
    with pytest.raises(MachineError, match=r"waited 0.5 s for rank 1 .*The last rank 1 .* ended: it is over"), late:
        late.gather()
    assert not place.exists()


def as_process(recipe_path, out, rank, n_rank, patience):
    args = [recipe_path, "--data.out", out, "--rank", rank, "--ranks", n_rank, "--rank-timeout", patience]
    code = (
        "import sys; from nmt.data.blockwise import blocks; blocks.N_PAIR = 30; from nmt.cli.preprocess import main; "
    )
    return subprocess.Popen(
        [sys.executable, "-c", code + "sys.exit(main(sys.argv[1:]))", *map(str, args)],
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )


def test_a_rank_that_is_killed_ends_the_others_by_name_and_the_next_ones_make_the_same(tmp_path, monkeypatch, capfd):
    recipe = recipe_in(tmp_path)
    assert together(recipe, tmp_path / "one", 1) == [0]
    write_recipe(recipe, tmp_path / "r.yaml")
    doomed = as_process(tmp_path / "r.yaml", tmp_path / "out", 1, 3, 20)
    wait_until_there(tmp_path, "1-of-3")
    share = crew._do_share

    def kill_before(stage, rank, *others):
        if stage["name"] == "encode" and rank == 0:
            doomed.send_signal(signal.SIGKILL)
            doomed.wait()
        return share(stage, rank, *others)

    monkeypatch.setattr(crew, "_do_share", kill_before)
    started = [start(recipe, tmp_path / "out", rank, 3, "--rank-timeout", 2) for rank in (0, 2)]
    codes, told = codes_of(started), capfd.readouterr().err
    doomed.stderr.close()
    assert codes == [1, 1] and not (tmp_path / "out").exists()
    assert f"waited for its part of encoding of rank 1 (process {doomed.pid} on " in told
    assert "given no sign of life for 2 s" in told and "rank 2 of 3 waited for the next step of rank 0" in told
    monkeypatch.undo()
    monkeypatch.setattr(blocks, "N_PAIR", 30)
    assert together(recipe, tmp_path / "out", 2) == [0, 0]
    assert content(tmp_path / "out") == content(tmp_path / "one")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_fails_tells_the_others_at_once(tmp_path, monkeypatch, capfd, rank):
    share = crew._do_share

    def fail(stage, here, *others):
        if stage["name"] == "count" and here == rank:
            raise MachineError("the disk is full")
        return share(stage, here, *others)

    monkeypatch.setattr(crew, "_do_share", fail)
    began = time.monotonic()
    assert together(recipe_in(tmp_path), tmp_path / "out", 3) == [1, 1, 1]
    assert time.monotonic() - began < 20, "far less than they would have waited"
    told = capfd.readouterr().err
    assert f"of rank {rank} (process " in told and "which ended: the disk is full" in told
    assert not (tmp_path / "out").exists()


def test_other_bytes_on_another_machine_are_refused(tmp_path):
    lines = [f"{k} lines" for k in range(100)]
    here = Source("train", Text("a", Path(write(tmp_path / "a", lines))), Text("b", Path(write(tmp_path / "b", lines))))
    reading = Reading("refuse", "refuse", 1000)
    tasks = [{"source": 0, **task} for task in indexed(here, reading, None).tasks()]
    lines[50] = "x lines"
    there = Source("train", Text("a", Path(write(tmp_path / "c", lines))), here.trg)
    with BlockReader([there], reading) as reader:
        assert reader.load(tasks[0])["n_pair"] == 30
        with pytest.raises(DataError, match="a or b: lines 31 to 60 are not those that another rank found"):
            reader.load(tasks[1])


@pytest.mark.parametrize("packed", [False, True])
def test_a_block_that_is_read_where_it_lies_is_that_of_all_blocks(tmp_path, monkeypatch, packed):
    monkeypatch.setattr(blocks, "_CHUNK", 64)
    monkeypatch.setattr(blocks, "_MOST_BYTES", 600)
    texts = []
    for seed in (1, 2):
        raw = b"\n".join(line.encode() for line in [*nasty(seed, 60), "y" * 700, "ä" * 300, "z" * 900, *nasty(9, 40)])
        path = tmp_path / str(seed)
        path.write_bytes(gzip.compress(raw) if packed else raw)
        texts.append(Text(str(seed), path))
    blocks_are_read_where_they_lie(Source("train", *texts))


def test_a_block_of_made_up_lines_is_that_of_all_blocks():
    blocks_are_read_where_they_lie(Source("train", Text("a", tuple(SRC)), Text("b", tuple(TRG))))


def blocks_are_read_where_they_lie(source):
    reading = Reading("refuse", "refuse", 100)
    whole = list(blocks_of(source, reading))
    tasks = [{"source": 0, **task} for task in indexed(source, reading, None).tasks()]
    assert len(whole) == len(tasks) > 5
    with BlockReader([source], reading) as reader:
        for n in (1, 3, len(tasks) - 1):
            found = reader.load(tasks[n])
            assert all(found[key] == whole[n][key] for key in ("first", "n_pair"))
            for name in {"src_raw", "trg_raw", "src_lines", "trg_lines"} & set(found):
                assert cut_lines(found[name], 100) == cut_lines(whole[n][name], 100)


def test_stdin_is_refused_by_name(tmp_path, capfd):
    recipe = recipe_in(tmp_path, train=[TrainingCorpus(file="-", format="tsv", src_column=1, trg_column=2)])
    assert codes_of([start(recipe, tmp_path / "out", 0, 2)]) == [2]
    assert "rank 0 of 2, as --ranks says: a training corpus is stdin" in capfd.readouterr().err
