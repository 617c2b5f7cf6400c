"""A compiler of Mixture-of-Experts layers: a small program in, one persistent Triton kernel per direction out.

Public names are imported on first use, so that `import uniep_compiler` is quick and loads neither torch nor triton.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from uniep_compiler.version import VERSION

if TYPE_CHECKING:
    from uniep_compiler import integrations, programs
    from uniep_compiler.diagnostics import HangError, UniepError
    from uniep_compiler.frontend.parse import Program, parse, parse_file
    from uniep_compiler.runtime import nn
    from uniep_compiler.runtime.layer import Layer, compile
    from uniep_compiler.runtime.routes import Routes
    from uniep_compiler.transports.virtual import virtual_group

__version__ = VERSION

_HOME = {
    "HangError": "uniep_compiler.diagnostics",
    "Layer": "uniep_compiler.runtime.layer",
    "Program": "uniep_compiler.frontend.parse",
    "Routes": "uniep_compiler.runtime.routes",
    "UniepError": "uniep_compiler.diagnostics",
    "compile": "uniep_compiler.runtime.layer",
    "parse": "uniep_compiler.frontend.parse",
    "parse_file": "uniep_compiler.frontend.parse",
    "virtual_group": "uniep_compiler.transports.virtual",
}
"""The module that each public name is imported from."""

_MODULES = {
    "integrations": "uniep_compiler.integrations",
    "nn": "uniep_compiler.runtime.nn",
    "programs": "uniep_compiler.programs",
}
"""The modules that are public as a whole, under the name that they have here."""

__all__ = [
    "HangError",
    "Layer",
    "Program",
    "Routes",
    "UniepError",
    "__version__",
    "compile",
    "integrations",
    "nn",
    "parse",
    "parse_file",
    "programs",
    "virtual_group",
]


def __getattr__(name: str) -> object:
    """Imports a public name when it is first asked for (PEP 562)."""
    value: object
    if name in _MODULES:
        value = import_module(_MODULES[name])
    elif name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
