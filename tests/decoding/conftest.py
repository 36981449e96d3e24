"""Make the helpers of this folder, such as `fake_model`, importable by its tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
