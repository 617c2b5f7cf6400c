"""Finds and reads the kernel templates, wherever the package was installed from."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path

import jinja2

from uniep_compiler.diagnostics import InternalError

PACKAGE = Path(__file__).resolve().parents[1]


def templates_root() -> Path:
    """The folder of the templates: inside the package in a wheel, beside it in a checkout or an editable install."""
    inside, beside = PACKAGE / "templates", PACKAGE.parent / "templates"
    if inside.is_dir():
        return inside
    # A folder of that name beside an installed package (in site-packages, say) would be somebody else's.
    if beside.is_dir() and (PACKAGE.parent / "pyproject.toml").is_file():
        return beside
    raise InternalError(
        f"no templates: neither {inside} nor {beside} (next to a pyproject.toml) is there; reinstall uniep-compiler"
    )


def template_names() -> tuple[str, ...]:
    """The names of all templates, sorted: paths below `templates_root()`, with forward slashes."""
    root = templates_root()
    return tuple(sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if _is_template(path)))


def template_text(name: str) -> str:
    """The text of one template."""
    path = templates_root() / name
    if not path.is_file():
        raise InternalError(f"no template {name!r} in {templates_root()}; there are {', '.join(template_names())}")
    return path.read_text(encoding="utf-8")


@cache
def environment() -> jinja2.Environment:
    """The Jinja environment of all templates: an unknown name is an error, tags leave no blank lines behind."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates_root(), encoding="utf-8"),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def templates_digest() -> str:
    """A SHA-256 in hex over names and texts of all templates, which stands for them in the key of the kernel cache."""
    digest = sha256()
    for name in template_names():
        for part in (name, template_text(name)):
            encoded = part.encode()
            # The length in front keeps two neighbouring parts from being read as two others.
            digest.update(len(encoded).to_bytes(8, "little"))
            digest.update(encoded)
    return digest.hexdigest()


def _is_template(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts
