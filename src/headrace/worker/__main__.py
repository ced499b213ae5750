"""`python -m headrace.worker`: how the fleet starts a worker."""

from __future__ import annotations

import sys

from headrace.worker.process import main

sys.exit(main())
