"""What every test may rely on: one thread, no network, no GPU unless a test asks for it."""

import os
import signal

# Before torch is imported: tests are tiny, and two processes of them share the machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"

# A shell without job control starts what is in the background deaf to Ctrl-C, and nohup to the end of the terminal. The
# commands under test would rightly stay deaf, and what is tested is what they do when they hear.
for _name, _handler in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
    if hasattr(signal, _name) and signal.getsignal(getattr(signal, _name)) == signal.SIG_IGN:
        signal.signal(getattr(signal, _name), _handler)
