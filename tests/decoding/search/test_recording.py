"""Recordings of a GPU, with one that only listens."""

from unittest.mock import MagicMock

import pytest
import torch

from nmt.decoding.graph import Recorder
from nmt.errors import MachineError


@pytest.fixture
def gpu(monkeypatch):
    """What a GPU is asked, in its order."""
    gpu = MagicMock()
    for name in ("Stream", "current_stream", "CUDAGraph", "stream", "graph_pool_handle"):
        monkeypatch.setattr(torch.cuda, name, getattr(gpu, name))
    return gpu


def test_work_is_done_then_recorded_then_replayed(gpu):
    recorder, done = Recorder(torch.device("cuda")), []
    graph = gpu.CUDAGraph.return_value
    counts = []
    for valid_for, key in (("here", "a"), ("here", "a"), ("here", "b"), ("here", "a"), ("elsewhere", "a")):
        recorder.keep_while(valid_for)
        recorder.run(key, lambda: done.append(1))
        counts.append((len(done), graph.capture_end.call_count, graph.replay.call_count))
    assert counts == [(1, 0, 0), (2, 1, 1), (3, 1, 1), (3, 1, 2), (4, 1, 2)]


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (RuntimeError("not permitted\nmore"), MachineError, "not permitted. Set decode.cuda_graphs"),
        (torch.OutOfMemoryError("too little"), torch.OutOfMemoryError, "too little"),
        (KeyboardInterrupt("stop"), KeyboardInterrupt, "stop"),
    ],
)
def test_what_goes_wrong_ends_the_recording(gpu, error, expected, message):
    recorder, work, graph = Recorder(torch.device("cuda")), MagicMock(), gpu.CUDAGraph.return_value
    recorder.run("a", work)
    work.side_effect, graph.capture_end.side_effect = error, RuntimeError("the recording is void")
    with pytest.raises(expected, match=message):
        recorder.run("a", work)
    assert graph.capture_end.called and gpu.stream.return_value.__exit__.called and not graph.replay.called
