"""``python -m tconv``."""

from __future__ import annotations

from tconv.cli.app import main

if __name__ == "__main__":
    main()
