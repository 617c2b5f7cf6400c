"""What is inside the wheel and the sdist, and that the package finds its data wherever it was installed from."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

FIND_TEMPLATES = (
    "from uniep_compiler.codegen import loader; print(loader.templates_root()); print(*loader.template_names())"
)


def hatch_build(source, into, target):
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(into)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (made,) = into.iterdir()
    return made


def run_python(code, *, path):
    """Standard output of `code`, where `path` is what the package can be imported from; far from any checkout."""
    env = {**os.environ, "PYTHONPATH": str(path), "PYTHONSAFEPATH": "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd="/", env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def wheel_names(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return sorted(name for name in archive.namelist() if not archive.getinfo(name).is_dir())


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of what is under version control or could be, so that nothing that lies around gets in or is needed."""
    copy = tmp_path_factory.mktemp("copy") / "checkout"
    left_out = shutil.ignore_patterns(
        ".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "dist", "build", "*.egg-info"
    )
    shutil.copytree(ROOT, copy, ignore=left_out)
    return copy


@pytest.fixture(scope="module")
def wheel(checkout, tmp_path_factory):
    return hatch_build(checkout, tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def sdist(checkout, tmp_path_factory):
    return hatch_build(checkout, tmp_path_factory.mktemp("sdist"), "sdist")


@pytest.fixture(scope="module")
def unpacked_sdist(sdist, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (inside,) = folder.iterdir()
    return inside


def test_the_wheel_holds_the_package_its_data_and_the_templates(checkout, wheel):
    package = {str(path.relative_to(checkout)) for path in (checkout / "uniep_compiler").rglob("*") if path.is_file()}
    templates = {f"uniep_compiler/{path.relative_to(checkout)}" for path in templates_of(checkout)}
    installed = {name for name in wheel_names(wheel) if ".dist-info/" not in name}
    assert installed == package | templates
    assert {"uniep_compiler/py.typed", "uniep_compiler/frontend/grammar.lark"} <= installed
    assert any(name.startswith("uniep_compiler/templates/") for name in installed)


def templates_of(checkout):
    return [path for path in (checkout / "templates").rglob("*") if path.is_file()]


def test_the_wheel_carries_the_license_and_the_command(wheel):
    with zipfile.ZipFile(wheel) as archive:
        texts = {
            name.partition(".dist-info/")[2]: archive.read(name).decode()
            for name in wheel_names(wheel)
            if ".dist-info/" in name
        }
    assert "Apache License" in texts["licenses/LICENSE"]
    assert "uniepc = uniep_compiler.cli:main" in texts["entry_points.txt"]
    assert "License-Expression: Apache-2.0" in texts["METADATA"]


def test_the_wheel_from_the_sdist_is_the_same_wheel(wheel, unpacked_sdist, tmp_path):
    again = hatch_build(unpacked_sdist, tmp_path, "wheel")
    assert again.name == wheel.name
    assert wheel_names(again) == wheel_names(wheel)
    with zipfile.ZipFile(again) as one, zipfile.ZipFile(wheel) as other:
        differing = [name for name in wheel_names(wheel) if one.read(name) != other.read(name)]
    assert differing == []


def test_the_sdist_can_be_developed_from(unpacked_sdist):
    needed = [
        "Makefile",
        "constraints.txt",
        "constraints-common.txt",
        "pyproject.toml",
        "templates",
        "tests/conftest.py",
        "examples",
    ]
    assert [name for name in needed if not (unpacked_sdist / name).exists()] == []


def test_an_unpacked_wheel_finds_its_templates_inside(checkout, wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    root, names = run_python(FIND_TEMPLATES, path=tmp_path)
    assert Path(root) == tmp_path / "uniep_compiler" / "templates"
    assert names.split() == expected_names(checkout)


def test_a_checkout_finds_its_templates_beside_the_package(checkout):
    root, names = run_python(FIND_TEMPLATES, path=checkout)
    assert Path(root) == checkout / "templates"
    assert names.split() == expected_names(checkout)


def test_an_editable_install_finds_the_templates_of_its_checkout(checkout, tmp_path):
    """The wheel of an editable install holds a path to the checkout, and a copy of the templates that is never read."""
    wheels, site = tmp_path / "wheels", tmp_path / "site"
    wheels.mkdir()
    build = f"from hatchling.build import build_editable; build_editable({str(wheels)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=checkout, capture_output=True, check=True)
    with zipfile.ZipFile(next(wheels.iterdir())) as archive:
        archive.extractall(site)
    (pth,) = site.glob("*.pth")
    # The order that an interpreter gives them: the folder itself, then what its .pth files name.
    root, names = run_python(FIND_TEMPLATES, path=os.pathsep.join([str(site), pth.read_text().strip()]))
    assert Path(root) == checkout / "templates"
    assert names.split() == expected_names(checkout)


def expected_names(checkout):
    return sorted(path.relative_to(checkout / "templates").as_posix() for path in templates_of(checkout))
