"""What every test may rely on: one thread, no network, no GPU unless a test asks for it."""

import os

# Before torch is imported: tests are tiny, and two processes of them share the machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
