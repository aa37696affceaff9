"""Makes the modules of the example importable."""

import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "feeds"

sys.path.append(str(EXAMPLE))
