"""The page about a layer: its pictures, and tables of families, signals, buffers and the linear order, in one file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import jinja2
from markupsafe import Markup

from uniep_compiler.ir.schedule import Schedule
from uniep_compiler.ir.tasks import Family, Post
from uniep_compiler.ir.tasks_text import family_lines
from uniep_compiler.pictures.diagram import Link, body_text, diagram, domain_text, name_of, plain, shape_text, wait_text
from uniep_compiler.pictures.families import families_svg
from uniep_compiler.pictures.order import order_svg, pieces
from uniep_compiler.pictures.style import MEANINGS, ROLES
from uniep_compiler.source import Source


def page(
    schedule: Schedule, *, title: str, source: Source, options: Mapping[str, object], tasks: str | None = None
) -> str:
    """The page as HTML, with nothing to load from elsewhere. `tasks` is a picture of single tasks, as SVG."""
    graph, links = schedule.graph, diagram(schedule).links
    return _template().render(
        title=title,
        options=[(name, value) for name, value in options.items() if value is not None],
        families=[_family(family, source) for family in graph.families],
        signals=[
            {
                "name": signal.name,
                "counters": plain(signal.extent),
                "scope": signal.scope,
                "phase": signal.phase or "",
                "makers": _makers(f"signal:{signal.name}", links),
                "users": _users(f"signal:{signal.name}", links),
            }
            for signal in graph.signals
        ],
        buffers=[
            {
                "name": buffer.name,
                "kind": buffer.kind,
                "shape": shape_text(buffer),
                "makers": _makers(f"buffer:{buffer.name}", links),
                "users": _users(f"buffer:{buffer.name}", links),
            }
            for buffer in graph.buffers
        ],
        pieces=pieces(schedule),
        roles=ROLES,
        meanings=MEANINGS,
        role_of={family.name: family.role for family in graph.families},
        source=source,
        families_svg=Markup(families_svg(schedule, title)),
        order_svg=Markup(order_svg(schedule)),
        tasks_svg=None if tasks is None else Markup(tasks),
    )


def _family(family: Family, source: Source) -> dict[str, object]:
    line = family.span.line
    return {
        "name": family.name,
        "role": family.role,
        "value": family.value,
        "line": line or "",
        "code": source.line(line).strip() if line else "",
        "domain": domain_text(family),
        "body": body_text(family),
        "waits": [f"{wait.signal}{wait_text(wait)}" for wait in family.waits],
        "posts": [_post_text(post) for post in family.posts],
        "text": "\n".join(family_lines(family)),
    }


def _post_text(post: Post) -> str:
    rank = "" if post.rank is None else f" of rank {plain(post.rank)}"
    return f"{post.signal}[{plain(post.index)}]{rank}"


def _makers(item: str, links: Iterable[Link]) -> str:
    """The families that write a buffer or post a signal."""
    return ", ".join(dict.fromkeys(name_of(link.source) for link in links if link.target == item))


def _users(item: str, links: Iterable[Link]) -> str:
    """The families that read a buffer or wait for a signal."""
    return ", ".join(dict.fromkeys(name_of(link.target) for link in links if link.source == item))


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("page.html.jinja")
