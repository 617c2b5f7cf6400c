"""The pinned versions fit what the package asks for, and cover it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins(name):
    """Name to version, of one file of constraints and those that it includes."""
    found = {}
    for line in (ROOT / name).read_text().splitlines():
        text = line.partition("#")[0].strip()
        if included := re.fullmatch(r"-c (\S+)", text):
            found |= pins(included[1])
        elif text:
            package, version = text.split("==")
            found[canonicalize_name(package)] = version
    return found


def requirements():
    lists = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    parsed = [Requirement(text) for texts in lists for text in texts]
    return [one for one in parsed if canonicalize_name(one.name) != PROJECT["name"]]


@pytest.mark.parametrize("constraints", ["constraints.txt", "constraints-cuda.txt"])
@pytest.mark.parametrize("requirement", requirements(), ids=lambda requirement: requirement.name)
def test_every_dependency_is_pinned_inside_its_range(constraints, requirement):
    version = pins(constraints)[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(version), f"{requirement} does not allow {version}"


def test_the_build_requires_what_the_tests_build_with():
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert [text for text in build if text not in PROJECT["optional-dependencies"]["dev"]] == []
