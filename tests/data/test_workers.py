"""Who among the helpers does what; that it makes no difference to what is written is tested with the blocks."""

import threading
from types import SimpleNamespace

from nmt.data import workers
from nmt.data.workers import Helpers


def test_what_is_left_in_a_file_goes_back_to_who_left_it(monkeypatch):
    """And the rest to whoever is free."""
    both, all_there, done = threading.Barrier(2), threading.Event(), []
    started = iter(range(2))

    def start():
        return SimpleNamespace(number=next(started), kill=lambda: None, wait=lambda: 0, stdin=None, stdout=None)

    def ask(process, name, task):
        if name == "look":
            both.wait(10)  # each of them has one
            return {"file": f"blocks.{process.number}"}
        if name == "hold":
            assert all_there.wait(10)
        elif name == "count":
            both.wait(10)
            done.append((task["file"], process.number))
        return {}

    monkeypatch.setattr(workers, "_start", start)
    monkeypatch.setattr(workers, "_ask", ask)
    with Helpers(2) as helpers:
        helpers.begin({}, None)
        files = [answer["file"] for answer in helpers.each("look", [{}, {}])]
        assert sorted(files) == ["blocks.0", "blocks.1"]
        held = [helpers.submit("hold", {}) for _ in range(2)]
        mine = [f"blocks.{number}" for number in (1, 1, 0, 1, 0, 0)]
        counted = [helpers.submit("count", {"file": file}) for file in [*mine, "blocks.1", "blocks.1"]]
        all_there.set()
        for each in [*held, *counted]:
            each.result(10)
    assert sorted(done[:6]) == sorted((file, int(file[-1])) for file in mine)
    assert sorted(done[6:]) == [("blocks.1", 0), ("blocks.1", 1)], "who has none of its own left takes another's"
