"""Where templates are looked for, and what the cache key's part for them depends on."""

from __future__ import annotations

import jinja2
import pytest

from uniep_compiler.codegen import loader


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with two templates, whose package the loader takes for its own."""
    (tmp_path / "uniep_compiler").mkdir()
    (tmp_path / "templates" / "triton").mkdir(parents=True)
    (tmp_path / "templates" / "kernel.py.jinja").write_text("a")
    (tmp_path / "templates" / "triton" / "gemm.py.jinja").write_text("b")
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(loader, "PACKAGE", tmp_path / "uniep_compiler")
    loader.environment.cache_clear()
    yield tmp_path
    loader.environment.cache_clear()


def test_a_checkout_has_them_beside_the_package(checkout):
    assert loader.templates_root() == checkout / "templates"
    assert loader.template_names() == ("kernel.py.jinja", "triton/gemm.py.jinja")
    assert loader.template_text("triton/gemm.py.jinja") == "b"


def test_inside_the_package_comes_first(checkout):
    (checkout / "uniep_compiler" / "templates").mkdir()
    assert loader.templates_root() == checkout / "uniep_compiler" / "templates"


def test_a_folder_beside_an_installed_package_is_not_ours(checkout):
    (checkout / "pyproject.toml").unlink()
    with pytest.raises(loader.InternalError, match="reinstall"):
        loader.templates_root()


def test_an_unknown_template_is_named_with_those_there_are(checkout):
    with pytest.raises(loader.InternalError, match=r"'gem.py.jinja'.*kernel.py.jinja, triton/gemm.py.jinja"):
        loader.template_text("gem.py.jinja")


def test_an_undefined_name_in_a_template_is_an_error(checkout):
    (checkout / "templates" / "kernel.py.jinja").write_text("BLOCK = {{ block }}\n")
    template = loader.environment().get_template("kernel.py.jinja")
    assert template.render(block=64) == "BLOCK = 64\n"
    with pytest.raises(jinja2.UndefinedError, match="block"):
        template.render()


def test_tags_leave_no_blank_lines(checkout):
    (checkout / "templates" / "kernel.py.jinja").write_text("x\n    {% if yes %}\ny < 1\n    {% endif %}\nz\n")
    assert loader.environment().get_template("kernel.py.jinja").render(yes=True) == "x\ny < 1\nz\n"


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "kernel.py.jinja").write_text("A"),
        lambda root: (root / "new.py.jinja").touch(),
        lambda root: (root / "kernel.py.jinja").unlink(),
        lambda root: (root / "kernel.py.jinja").rename(root / "kernels.py.jinja"),
        lambda root: ((root / "kernel.py.jinja").write_text("b"), (root / "triton" / "gemm.py.jinja").write_text("a")),
    ],
    ids=["text", "one more", "one less", "name", "texts swapped"],
)
def test_the_digest_changes_with_any_name_or_text(checkout, change):
    before = loader.templates_digest()
    assert loader.templates_digest() == before
    change(checkout / "templates")
    assert loader.templates_digest() != before


def test_the_digest_depends_on_nothing_else(checkout):
    before = loader.templates_digest()
    (checkout / "templates" / "__pycache__").mkdir()
    (checkout / "templates" / "__pycache__" / "x.pyc").touch()
    (checkout / "templates").rename(checkout / "uniep_compiler" / "templates")
    assert loader.templates_digest() == before
