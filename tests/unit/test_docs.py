"""The documents are true: the README's example runs, links lead somewhere, docs/system.md names every file."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import uniep_compiler as uniep
from examples.demo_qwen3_moe import PROGRAM, domain_text, step_of, waits_text
from uniep_compiler import compiler
from uniep_compiler.codegen.loader import PACKAGE, templates_root

ROOT = Path(__file__).parents[2]
SYSTEM = ROOT / "docs" / "system.md"
EXAMPLE = {"dims": {"H": 2048, "I": 768, "E": 128, "K": 8}, "target": "sm_90"}


# -- the README --------------------------------------------------------------------------------------------------------


def test_the_example_of_the_readme_runs(monkeypatch, capsys):
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(ROOT)
    exec(compile(example, "README.md", "exec"), {})
    error, bits = capsys.readouterr().out.splitlines()
    assert 0 < float(error.removeprefix("largest error ")) < 1e-5
    assert bits == "same bits True"


def test_the_examples_of_the_python_page_run(monkeypatch):
    page = ROOT / "docs" / "python.md"
    examples = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert len(examples) > 5
    monkeypatch.chdir(ROOT)
    exec(compile("\n".join(examples), page.name, "exec"), {})


def test_the_python_page_has_every_argument_with_its_default():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?)\|", (ROOT / "docs" / "python.md").read_text(), re.MULTILINE))
    for name, parameter in inspect.signature(uniep.compile).parameters.items():
        default = "" if parameter.default is inspect.Parameter.empty else repr(parameter.default).replace("'", '"')
        assert rows[name].strip("` ") == default


def test_the_transformers_page_has_every_argument_of_experts_with_its_default():
    text = (ROOT / "docs" / "transformers.md").read_text()
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (.*?)\|", text, re.MULTILINE)
    defaults = {name: default.strip("` ") for names, default in rows for name in re.findall(r"\w+", names)}
    for name, parameter in inspect.signature(uniep.nn.Experts).parameters.items():
        default = "" if parameter.default is inspect.Parameter.empty else repr(parameter.default).replace("'", '"')
        assert defaults[name] == default
    (row,) = [line for line in text.splitlines() if line.startswith("| `activation` |")]
    assert [name for name in uniep.programs.ACTIVATIONS if f'`"{name}"`' not in row] == []


def test_the_python_page_has_all_that_a_layer_offers():
    text = (ROOT / "docs" / "python.md").read_text()
    inner = {"compiled_for", "num_tokens", "plan_shape"}  # of the package's own modules
    public = {name for name in vars(uniep.Layer) if not name.startswith("_")} - inner
    assert [name for name in public if f"`layer.{name}" not in text] == []


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "docs").glob("*.md")))
def test_the_readme_leads_to_every_page(page):
    assert f"](docs/{page})" in (ROOT / "README.md").read_text()


def test_links_lead_somewhere():
    for page in (ROOT / "README.md", SYSTEM, ROOT / "docs" / "python.md", ROOT / "docs" / "contributing.md"):
        targets = re.findall(r"\]\(([^)#:]+)[^)]*\)", page.read_text())
        assert targets
        assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("target", ["demo", "test", "test-long", "test-gpu", "bench"])
def test_a_make_target_starts_what_there_is(target):
    recipe = ["make", "-n", "INSTALL=0", f"PYTHON={sys.executable}", target, "ARGS=--some-argument"]
    text = subprocess.run(recipe, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (last,) = [line for line in text.splitlines() if "--some-argument" in line]
    (started,) = re.findall(r"-m ([\w.]+)|(\S+\.py)", last.partition(sys.executable)[2])[:1]
    module, script = started
    assert find_spec(module) is not None if module else (ROOT / script).is_file()


def test_the_readme_has_a_place_for_the_benchmark():
    text = (ROOT / "README.md").read_text()
    assert text.index("<!-- benchmark:begin -->") < text.index("<!-- benchmark:end -->")


# -- docs/system.md ----------------------------------------------------------------------------------------------------


def named_files():
    """Files that docs/system.md names, by folder: a heading names the folder, and the items under it the files."""
    found, folder = {}, None
    for line in SYSTEM.read_text().splitlines():
        if line.startswith("#"):
            folder = next(iter(re.findall(r"`(\S+)/`", line)), None)
        elif line.startswith("- "):
            found.setdefault(folder, set()).update(re.findall(r"`([\w.]+)`", line.partition(":")[0]))
    return found


def files_there_are():
    """Modules, the grammar and templates by folder, but for `__init__.py` and `__main__.py`."""
    found = {}
    for name, base in (("uniep_compiler", PACKAGE), ("templates", templates_root())):
        for path in base.rglob("*"):
            inside = path.relative_to(base)
            if path.suffix in (".py", ".lark", ".jinja") and inside.parts[0] != "templates" and "__" not in path.name:
                found.setdefault(str(name / inside.parent), set()).add(path.name)
    return found


def lacking(some, others):
    """What `others` lacks of `some`: folder/file."""
    return sorted(f"{folder}/{file}" for folder, files in some.items() for file in files - others.get(folder, set()))


def test_system_md_names_every_module_and_every_template():
    missing = lacking(files_there_are(), named_files())
    assert not missing, f"docs/system.md has no line for {', '.join(missing)}"


def test_system_md_names_nothing_that_is_gone():
    gone = lacking(named_files(), files_there_are())
    assert not gone, f"docs/system.md has a line for {', '.join(gone)}"


def example_lines(name):
    """Lines of an example of docs/system.md, with single spaces."""
    text = SYSTEM.read_text().partition(f"<!-- example:{name} -->\n")[2].partition("<!-- example:end -->")[0]
    return [" ".join(line.split()) for line in text.splitlines()]


def test_the_schedule_in_system_md_is_what_the_compiler_makes():
    program = uniep.parse_file(PROGRAM)
    pair = uniep.compile(program, **EXAMPLE, group=uniep.virtual_group(2))
    first = compiler.states(pair.ops, pair._default.settings)[0].ir
    before = [f"{f.name} {f.role} {domain_text(f)}".replace("\n", ", ") for f in first.families]
    after = [f"{f.name} {waits_text(f)}" for f in pair.graph.families if f.waits]
    order = [step_of(segment)[0] for launch in pair.schedule.launches for segment in launch.segments]
    assert example_lines("before") == before
    assert example_lines("after") == after
    assert example_lines("order") == order
