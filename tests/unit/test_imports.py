"""The compiler imports neither torch nor triton, and `import uniep_compiler` imports next to nothing."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import uniep_compiler

PACKAGE = Path(uniep_compiler.__file__).parent
RUN_TIME = ("runtime", "transports", "integrations")

# Imports the modules named on standard input, and prints who asked for a forbidden one: [[asked for, file, line], ...].
SPY = """
import importlib, json, sys, traceback

found = []

class Spy:
    def find_spec(self, name, path=None, target=None):
        if name in sys.argv[1:]:
            frames = [f for f in traceback.extract_stack() if "uniep_compiler" in f.filename]
            found.append([name, frames[-1].filename, frames[-1].lineno] if frames else [name, "?", 0])

sys.meta_path.insert(0, Spy())
for module in json.load(sys.stdin):
    importlib.import_module(module)
json.dump(found, sys.stdout)
"""


def spy_on_imports(modules, forbidden):
    done = subprocess.run(
        [sys.executable, "-c", SPY, *forbidden],
        input=json.dumps(modules),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
    )
    assert done.returncode == 0, done.stderr
    return [f"{file}:{line} imports {name}" for name, file, line in json.loads(done.stdout)]


def module_name(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def compiler_modules():
    paths = sorted(PACKAGE.rglob("*.py"))
    return [module_name(path) for path in paths if path.relative_to(PACKAGE).parts[0] not in RUN_TIME]


def test_the_compiler_imports_neither_torch_nor_triton():
    modules = compiler_modules()
    assert "uniep_compiler.ir.ops" in modules
    assert spy_on_imports(modules, ["torch", "triton"]) == []


def import_order():
    """Folders and modules of the package in the order of docs/system.md."""
    text = (PACKAGE.parent / "docs" / "system.md").read_text()
    return re.findall(r"\w+", text.partition("<!-- imports:begin -->")[2].partition("<!-- imports:end -->")[0])


def imports_of(path):
    """The folders and modules of the package that a file imports from, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name.split(".")[1] for name in names if name.startswith("uniep_compiler."))


def test_imports_go_one_way():
    order = import_order()
    found, wrong = set(), []
    for path in sorted(PACKAGE.rglob("*.py")):
        home = path.relative_to(PACKAGE).with_suffix("").parts[0]
        if home == "__init__":
            continue
        found.add(home)
        for other in imports_of(path):
            if other != home and order.index(other) >= order.index(home):
                wrong.append(f"{path.relative_to(PACKAGE)} imports from {other}")
    assert wrong == []
    assert sorted(order) == sorted(found - {"errors"})


def test_the_spy_sees_an_import_and_who_asked(tmp_path):
    (path := tmp_path / "uniep_compiler_guilty.py").write_text("x = 1\nimport torch\n")
    sys_path = f"import sys; sys.path.insert(0, {str(tmp_path)!r})"
    done = subprocess.run(
        [sys.executable, "-c", f"{sys_path}\n{SPY}", "torch"],
        input=json.dumps([path.stem]),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [["torch", str(path), 2]]


def test_importing_the_package_imports_nothing_else():
    others = ["lark", "networkx", "jinja2", "typer", "rich", "numpy", "torch", "triton", "transformers"]
    assert spy_on_imports(["uniep_compiler"], others) == []


@pytest.mark.parametrize("name", uniep_compiler.__all__)
def test_a_public_name_resolves(name):
    assert getattr(uniep_compiler, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'parse_fil'"):
        uniep_compiler.parse_fil  # noqa: B018


def test_what_type_checkers_see_is_what_is_imported():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.asname or alias.name: node.module for node in block.body for alias in node.names}
    lazy = uniep_compiler._HOME | {name: home.rpartition(".")[0] for name, home in uniep_compiler._MODULES.items()}
    assert seen == lazy


def test_all_is_the_lazy_names_and_the_version():
    assert set(uniep_compiler.__all__) == {*uniep_compiler._HOME, *uniep_compiler._MODULES, "__version__"}
    assert list(uniep_compiler.__all__) == sorted(uniep_compiler.__all__)
