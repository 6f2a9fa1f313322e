"""Run the command line: ``python -m fleetfit``."""

import sys

from estimators.cli.main import main

sys.exit(main())
