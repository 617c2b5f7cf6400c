"""`python -m uniep_compiler.cli` is `uniepc`."""

from __future__ import annotations

from uniep_compiler.cli.app import main

if __name__ == "__main__":
    main()
