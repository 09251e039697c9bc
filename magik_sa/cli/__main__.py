"""``python -m magik_sa.cli``: the program `magik` where the folder of installed programs is not on the path."""

from __future__ import annotations

from . import main

if __name__ == "__main__":
    main()
