"""Run the command line: ``fleetfit``, or ``python -m fleetfit``."""

import sys


def main() -> int:
    """Run the command line, and return the exit status."""
    try:
        from estimators.cli.main import main as run  # here, so that Ctrl-C shows no traceback while it is imported

        return run()
    except KeyboardInterrupt:
        sys.stderr.write("fleetfit: interrupted.\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
