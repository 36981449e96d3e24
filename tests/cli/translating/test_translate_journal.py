"""nmt-translate --output goes on where it was, however it ended, and ends with the bytes of an undisturbed run."""

import errno
import io
import json
import os
import resource
import signal
import time
from pathlib import Path

import pytest
from fault_process import Child
from made_run import HASTY

from nmt.cli.translate import main
from nmt.cli.translating import journal as translate_journal
from nmt.cli.translating import workers
from nmt.cli.translating.journal import Journal, known
from nmt.cli.translating.workers import LineResult
from nmt.decoding.translation import Scored
from nmt.errors import NmtError

LINES = ["the ship", "für Übung", "the ship", "", "in May", "für Übung", "the old ship left", "the ship", "left"]
SOURCE = "".join(line + "\n" for line in LINES).encode()
FIT = {"model": "a", "decode.beam": 4}
MADE_OF = HASTY


@pytest.fixture(autouse=True)
def no_bar(monkeypatch):
    """What is said is compared, and on a slow machine a bar would get between."""
    monkeypatch.setattr("nmt.progress.EVERY", 1e9)


def journal_of(path, fit=None):
    said = []
    return Journal(path, fit or FIT, said.append), said


def results(n, n_line=10):
    return [LineResult(Scored([-0.1 * n], [n], [7]))] * n_line


def fill(path, n=3):
    with journal_of(path)[0] as journal:
        for number in range(n):
            journal.add(f"digest {number}", results(number))


# -- the file ----------------------------------------------------------------------------------------------------------


def test_what_was_added_is_there_again_in_order_and_then_nothing(tmp_path):
    fill(tmp_path / "j")
    journal, said = journal_of(tmp_path / "j")
    with journal:
        assert journal.n_line == 30
        assert [journal.take(f"digest {n}") for n in range(4)] == [*map(results, range(3)), None]
        journal.add("digest 3", results(3, 1))
    assert known(tmp_path / "j").n_line == 31 and not said


def test_a_journal_cut_off_or_damaged_anywhere_keeps_what_is_whole_before(tmp_path):
    fill(tmp_path / "j")
    whole = (tmp_path / "j").read_bytes()
    ends = [frame.end for frame in translate_journal.frames((tmp_path / "j").open("rb"))]
    assert len(ends) == 4
    for n_byte in range(0, len(whole), 7):
        for damaged in (whole[:n_byte], whole[:n_byte] + b"\0" * 99, whole[:n_byte] + bytes([whole[n_byte] ^ 1])):
            (tmp_path / "j").write_bytes(damaged)
            assert known(tmp_path / "j").n_line == 10 * max(0, sum(end <= n_byte for end in ends) - 1)
    (tmp_path / "j").write_bytes(whole[: ends[2] + 5])
    with journal_of(tmp_path / "j")[0] as journal:
        assert journal.take("digest 0") and journal.take("digest 1") and journal.take("digest 2") is None
        journal.add("digest 2", results(2))
    assert (tmp_path / "j").read_bytes() == whole


@pytest.mark.parametrize("there", ["another model", "other options", "no journal"])
def test_a_journal_that_does_not_fit_is_not_used_and_not_lost(tmp_path, there):
    fill(tmp_path / "j")
    fit = {"another model": {**FIT, "model": "b"}, "other options": {**FIT, "decode.beam": 1}}.get(there)
    if there == "no journal":
        (tmp_path / "j").write_bytes(b"what somebody wrote\n")
    before = (tmp_path / "j").read_bytes()
    journal, said = journal_of(tmp_path / "j", fit)
    with journal:
        assert journal.n_line == 0 and journal.take("digest 0") is None
    why = {"another model": "another model", "other options": "another decode.beam", "no journal": "no journal"}[there]
    assert len(said) == 1 and why in said[0] and "j.unused" in said[0]
    assert (tmp_path / "j.unused").read_bytes() == before and not (tmp_path / "j").exists()


def test_what_did_not_fit_before_is_not_lost_when_more_does_not_fit(tmp_path):
    for n, told in enumerate(["j.unused", "j.unused-2", "j.unused-3"], start=1):
        fill(tmp_path / "j", n)
        journal, said = journal_of(tmp_path / "j", {**FIT, "decode.beam": 1})
        with journal:
            assert said[0].endswith(f"kept as {told}")
        assert [known(path).n_line for path in sorted(tmp_path.glob("j.*"))] == [10 * i for i in range(1, n + 1)]


def test_of_another_input_what_is_the_same_is_used(tmp_path):
    fill(tmp_path / "j")
    journal, said = journal_of(tmp_path / "j")
    with journal:
        assert journal.take("digest 0") == results(0)
        assert journal.take("changed") is None and journal.take("digest 2") is None
        assert journal.n_line == 10 and "after line 10" in said[0]
        journal.add("changed", results(1, 5))
    assert known(tmp_path / "j").n_line == 15 and known(tmp_path / "j.unused").n_line == 30


def test_two_processes_cannot_write_the_same_output(tmp_path):
    with journal_of(tmp_path / "j")[0], pytest.raises(NmtError, match="in use"):
        journal_of(tmp_path / "j")


def test_a_mark_holds_until_there_is_more(tmp_path):
    with journal_of(tmp_path / "j")[0] as journal:
        journal.mark("share", 1)
    assert known(tmp_path / "j").marks == {"share": 1}
    with journal_of(tmp_path / "j")[0] as journal:
        journal.add("digest", results(1, 1))
    assert known(tmp_path / "j").marks == {}


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def undisturbed():
    """What the command leaves and says where nothing goes wrong, without a reference, and with one and alignments."""
    return {}


@pytest.fixture
def command(folder, tmp_path, capsysbinary, undisturbed):
    """The command in a folder of its own, and the same in another one where nothing goes wrong."""

    def flags(place: Path, scored: bool) -> list[str]:
        place.mkdir(exist_ok=True)
        (place / "in").write_bytes(SOURCE)
        names = {"input": "in", "output": "out"}
        if scored:
            (place / "ref").write_bytes(SOURCE)
            names |= {"ref": "ref", "scores": "scores.json", "alignments": "links"}
        paths = [part for flag, name in names.items() for part in (f"--{flag}", str(place / name))]
        examples = ["--examples", "2"] if scored else []
        return [folder, *paths, *examples, "--format", "jsonl", "--decode.window", "2", "--decode.n_best", "2"]

    def result(place: Path, scored: bool) -> tuple[dict[str, bytes], str]:
        assert main(flags(place, scored)) == 0
        err = capsysbinary.readouterr().err.decode()
        return {path.name: path.read_bytes() for path in place.iterdir()}, err

    class Command:
        place = tmp_path / "here"
        out = tmp_path / "here" / "out"
        scored = False  # whether there is a reference, which takes time

        def start(self, harm) -> Child:
            arguments = flags(self.place, self.scored)

            def body() -> int:
                harm()
                return main(arguments)

            return Child(body, tmp_path / "talk", {"TOKENIZERS_PARALLELISM": "false"})

        def flags(self) -> list[str]:
            return flags(self.place, self.scored)

        def must_go_on(self) -> str:
            """The same command again leaves the files, and says the things, of one that nothing happened to."""
            files, err = result(self.place, self.scored)
            if self.scored not in undisturbed:
                undisturbed[self.scored] = result(tmp_path / "undisturbed", self.scored)
            wanted, wanted_err = undisturbed[self.scored]
            assert files == wanted
            assert [line for line in err.split("\n") if "out.journal" not in line] == wanted_err.split("\n")
            return err

    (tmp_path / "here").mkdir()
    return Command()


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def at(n, harm, otherwise):
    """A function that does `harm` when it is called for the n-th time."""
    count = iter(range(1, 1000))
    return lambda *args, **kwargs: (harm if next(count) == n else otherwise)(*args, **kwargs)


def half(journal, frame):
    journal._file.seek(0, os.SEEK_END)
    journal._file.write(frame[: len(frame) // 2])
    die()


def after(call):
    return lambda *args: die(call(*args))


@pytest.mark.parametrize(
    ("where", "n"),
    [("half", 2), ("half", 7), ("fsync", 4), ("after replace", 2)],
)
def test_killed_at_any_instant_it_goes_on_and_ends_with_the_same_bytes(command, where, n):
    def harm():
        if where == "half":
            Journal._write = at(n, half, Journal._write)
        else:
            name = where.removeprefix("after ")
            call = getattr(os, name)
            setattr(os, name, at(n, after(call) if "after" in where else die, call))

    command.scored = where != "half"
    ended = command.start(harm).go().wait()
    assert ended.code == 137, ended.said
    err = command.must_go_on()
    if where == "half" and n > 2:
        assert f"has the answers to {min(9, 2 * n - 4)} lines" in err


@pytest.mark.parametrize("n_byte", [1_000])
def test_a_full_disk_costs_nothing_but_time(command, n_byte):
    ended = command.start(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (n_byte, n_byte))).go().wait()
    assert ended.code == 1 and "Traceback" not in ended.said
    # What is said has no more room than the journal.
    assert f"error: {command.out}.journal: {os.strerror(errno.EFBIG)}"[: n_byte - 20] in ended.said
    assert not command.out.exists()
    command.must_go_on()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_stops_at_once_and_says_what_is_kept(command, name):
    real = workers.LineTranslator.results

    def harm():
        def signalled(*args):
            os.kill(os.getpid(), getattr(signal, name))
            time.sleep(20)

        workers.LineTranslator.results = at(5, signalled, real)

    ended = command.start(harm).go().wait()
    assert ended.code == 128 + getattr(signal, name) and "Traceback" not in ended.said
    assert "out.journal keeps the answers to " in ended.said
    assert sorted(path.name for path in command.place.iterdir()) == ["in", "out.journal"]
    command.must_go_on()


def test_a_restart_asks_the_model_only_for_what_is_missing(command, monkeypatch):
    command.start(lambda: setattr(Journal, "_write", at(4, half, Journal._write))).go().wait()
    asked = []
    real = workers.LineTranslator.results

    def noted(lines, task):
        asked.extend(request.source for request, _ in task.items)
        return real(lines, task)

    with monkeypatch.context() as patch:
        patch.setattr(workers.LineTranslator, "results", noted)
        assert main(command.flags()) == 0
    assert asked == ["in May", "für Übung", "the old ship left", "the ship", "left"]


@pytest.mark.parametrize("changed", [["--decode.beam", "2"], ["--checkpoint", "model"], ["--format", "tsv"]])
def test_other_options_begin_anew_and_say_so(command, folder, capsysbinary, changed):
    command.start(lambda: setattr(Journal, "_write", at(4, half, Journal._write))).go().wait()
    place = command.place
    code = main([folder, "-i", str(place / "in"), "-o", str(place / "out"), "--format", "jsonl", "--decode.window", "2",
                 "--decode.n_best", "2", *changed])  # fmt: skip
    err = capsysbinary.readouterr().err.decode()
    assert code == 0
    same = "--checkpoint" in changed  # of the same weights
    assert ("has the answers to 4 lines" in err) == same
    assert (changed[0] in err.replace("--decode", "decode")) != same or "decode.beam" in err
    assert (place / "out.journal.unused").exists() != same


def test_an_input_that_changed_is_translated_anew_from_there(command, translate, tmp_path):
    command.start(lambda: setattr(Journal, "_write", at(5, half, Journal._write))).go().wait()
    lines = [*LINES[:3], "something else", *LINES[4:]]
    flags = ("--format", "jsonl", "--decode.window", 2, "--decode.n_best", 2)
    (command.place / "in").write_bytes("".join(line + "\n" for line in lines).encode())
    _, err = translate("-i", command.place / "in", "-o", command.out, *flags)
    assert "after line 2 the input is another one" in err
    wanted, _ = translate("-i", command.place / "in", *flags)
    assert command.out.read_text(encoding="utf-8").split("\n")[:-1] == wanted
    assert json.loads(wanted[3])["source"] == "something else"


@pytest.fixture
def meanwhile(monkeypatch):
    """Have something done while the model answers for the third time."""

    def put(harm):
        real = workers.LineTranslator.results
        both = at(3, lambda *args: (harm(), real(*args))[1], real)
        monkeypatch.setattr(workers.LineTranslator, "results", both)

    return put


@pytest.mark.parametrize("what", ["longer", "other words"])
def test_an_input_that_is_written_to_meanwhile_is_refused(command, translate, meanwhile, what):
    there = SOURCE + b"left\n" if what == "longer" else SOURCE.replace(b"ship", b"left")
    wanted, _ = translate("--decode.window", 2, source=SOURCE)
    (command.place / "in").write_bytes(SOURCE)
    flags = ("-i", command.place / "in", "-o", command.out, "--decode.window", 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nmt.cli.translating.input.opened", lambda path: io.BytesIO(SOURCE))  # it has read ahead
        meanwhile(lambda: (command.place / "in").write_bytes(there))
        _, err = translate(*flags, code=2)
    assert "in: changed while it was read" in err and not command.out.exists()
    (command.place / "in").write_bytes(SOURCE)
    translate(*flags)
    assert command.out.read_text(encoding="utf-8").split("\n")[:-1] == wanted


def test_an_input_that_another_file_replaces_is_read_to_its_end(command, translate, meanwhile):
    source = command.place / "in"
    source.write_bytes(SOURCE)

    def replace():
        (command.place / "new").write_bytes(b"left\n")
        os.replace(command.place / "new", source)

    meanwhile(replace)
    lines, _ = translate("-i", source, "--decode.window", 2)
    assert len(lines) == len(LINES)


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("name", ["out", "links"])
def test_a_file_that_came_meanwhile_is_not_replaced(command, translate, meanwhile, name, moved):
    flags = ("-o", command.out, "--alignments", command.place / "links", "--decode.window", 2)
    meanwhile(lambda: (command.place / name).write_bytes(b"mine"))
    _, err = translate(*flags, source=SOURCE, code=2)
    assert f"{name} exists already. Move it away and start again, which goes on from the journal, or" in err
    assert sorted(path.name for path in command.place.iterdir()) == sorted([name, "out.journal"])
    assert (command.place / name).read_bytes() == b"mine"
    if moved:
        (command.place / name).unlink()
    _, err = translate(*flags, *([] if moved else ["--overwrite"]), source=SOURCE)
    assert sorted(path.name for path in command.place.iterdir()) == ["links", "out"]
    assert not moved or f"has the answers to {len(LINES)} lines: going on from there" in err


def test_from_stdin_it_goes_on_as_well(command, translate):
    flags = ("-o", command.out, "--decode.window", 2)
    wanted, _ = translate(*flags[2:], source=SOURCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers.LineTranslator, "results", at(5, lambda *_: 1 / 0, workers.LineTranslator.results))
        translate(*flags, source=SOURCE, code=1)
    _, err = translate(*flags, source=SOURCE)
    assert "has the answers to" in err
    assert command.out.read_text(encoding="utf-8").split("\n")[:-1] == wanted


def test_what_the_report_cannot_do_is_said_when_the_output_is_there(command, translate):
    _, err = translate("-o", command.out, "--attention", command.place / "a.png", "--lines", "77", code=2)
    assert "--lines 77" in err
    assert [path.name for path in command.place.iterdir()] == ["out"]


def test_given_translations_are_scored_on_after_a_stop(command, translate, monkeypatch):
    (command.place / "in").write_bytes(SOURCE)
    flags = ("-i", command.place / "in", "--score", command.place / "in", "--decode.window", 2)
    wanted, _ = translate(*flags)
    with monkeypatch.context() as patch:
        patch.setattr(workers.LineTranslator, "results", at(3, lambda *_: 1 / 0, workers.LineTranslator.results))
        translate(*flags, "-o", command.out, code=1)
    _, err = translate(*flags, "-o", command.out)
    assert "has the answers to 4 lines" in err
    assert command.out.read_text(encoding="utf-8").split("\n")[:-1] == wanted
