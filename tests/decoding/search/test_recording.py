"""A failing recording of CUDA graphs, on a mocked GPU."""

from unittest.mock import MagicMock

import pytest
import torch

from nmt.decoding.fixed_search import Recorder
from nmt.errors import MachineError


@pytest.fixture
def gpu(monkeypatch):
    """Mock of torch.cuda that records its calls in order."""
    gpu = MagicMock()
    for name in ("Stream", "current_stream", "CUDAGraph", "stream", "graph_pool_handle"):
        monkeypatch.setattr(torch.cuda, name, getattr(gpu, name))
    return gpu


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (RuntimeError("not permitted\nmore"), MachineError, "not permitted. Set decode.cuda_graphs"),
        (torch.OutOfMemoryError("too little"), torch.OutOfMemoryError, "too little"),
        (KeyboardInterrupt("stop"), KeyboardInterrupt, "stop"),
    ],
)
def test_error_ends_the_recording(gpu, error, expected, message):
    recorder, work, graph = Recorder(torch.device("cuda")), MagicMock(), gpu.CUDAGraph.return_value
    recorder.run("a", work)
    work.side_effect, graph.capture_end.side_effect = error, RuntimeError("the recording is void")
    with pytest.raises(expected, match=message):
        recorder.run("a", work)
    assert graph.capture_end.called and gpu.stream.return_value.__exit__.called and not graph.replay.called
