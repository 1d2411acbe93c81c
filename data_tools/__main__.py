"""``python -m data_tools`` is ``ecg-data``."""

import sys

from data_tools.cli import main

sys.exit(main())
