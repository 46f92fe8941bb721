"""``python -m tconv``, and the command `tconv`."""

from __future__ import annotations

import sys

from tconv.cli import exit_codes, interrupts


def main() -> None:
    try:
        interrupts.let_imports_end()
        from tconv.cli import app

        app.main()
    except KeyboardInterrupt:
        print("tconv: interrupted", file=sys.stderr)
        sys.exit(exit_codes.INTERRUPTED)


if __name__ == "__main__":
    main()
