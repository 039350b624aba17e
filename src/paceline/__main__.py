"""``python -m paceline`` is the command ``paceline``; launchers start workers this way."""

import sys

from paceline.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
