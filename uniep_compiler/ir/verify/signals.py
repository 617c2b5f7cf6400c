"""Rules about signals: targets are the number of posts, and scopes fit who talks to whom."""

from __future__ import annotations

from collections.abc import Iterator

from uniep_compiler.diagnostics import Diagnostic
from uniep_compiler.ir.index import Coord, Expr, Int, coordinates
from uniep_compiler.ir.index_text import print_expr
from uniep_compiler.ir.tasks import Family, Post, Scope, Wait
from uniep_compiler.ir.verify.context import Context, Frame, Record
from uniep_compiler.ir.verify.elements import Element, Target, witness
from uniep_compiler.ir.verify.facts import Count, Kind
from uniep_compiler.ir.verify.linear import Linear
from uniep_compiler.ir.verify.model import Model
from uniep_compiler.ir.verify.report import about

Counts = dict[tuple[str, int], Count | None]
"""What posts were found to count, by family and post."""


def check_targets_are_the_number_of_posts(model: Model) -> Iterator[Diagnostic]:
    """For every counter that is waited for: the target is the number of posts that reach it, from all ranks."""
    counts: Counts = {}
    for family, _, wait in model.waits():
        posters = model.posters[wait.signal]
        if not _target_is_count(model, family, wait, counts):
            names = ", ".join(dict.fromkeys(f"`{poster.name}`" for poster, _ in posters)) or "nobody"
            yield about(
                "UEP0313",
                f"`{family.name}` waits for `{wait.signal}` to reach {print_expr(wait.target)}, which may not be the "
                "number of posts that reach it",
                family,
                *(poster for poster, _ in posters),
                note=f"`{wait.signal}[{print_expr(wait.index)}]` is posted by {names}",
                help="too high a target is never reached, too low a one comes through before all is done: make the "
                "target the number of posts to that counter",
            )


def _target_is_count(model: Model, family: Family, wait: Wait, counts: Counts) -> bool:
    shared, element = model.element(family, wait)
    context = shared.copy()
    total = Linear.number(0)
    for poster, post in model.posters[wait.signal]:
        count = _number_of_posts(model, context, (poster, post), element, counts)
        if count is None:
            return False
        total = total.plus(count)
    target = context.term(wait.target, Frame(rank=element.task.rank, coords=element.coords))
    context.saturate()
    return context.proves_equal(target, total)


def _number_of_posts(
    model: Model, context: Context, post: tuple[Family, Post], counter: Element, counts: Counts
) -> Linear | None:
    """How many posts of a family reach the counter that `counter` stands for; None if that can't be said."""
    poster, posted = post
    if posted.rank is None and posted.when is None:
        plain = _number_of_plain_posts(context, poster, posted, counter)
        if plain is not None:
            return plain
    key = (poster.name, id(posted))
    if key not in counts:
        counts[key] = _count_of_routes(model, poster, posted)
    count = counts[key]
    return None if count is None else _entry_of_count(context, count, counter)


# -- posts that are counted by multiplying extents ------------------------------------------------------------------


def _number_of_plain_posts(context: Context, poster: Family, post: Post, counter: Element) -> Linear | None:
    """Posts to an index that is a constant or one coordinate: the product of the other coordinates' extents."""
    ranges = (*poster.domain, *post.over)
    coords: dict[str, Linear] = {}
    frame = Frame(rank=counter.task.rank, coords=coords)
    match post.index:
        case Int(value):
            if not context.proves_equal(counter.row, Linear.number(value)):
                return None
        case Coord(name):
            extent = next(item.extent for item in ranges if item.coord == name)
            coords[name] = counter.row
            if not context.proves(counter.row, context.term(extent, frame).minus(counter.row).shifted(-1)):
                return None
        case _:
            return None
    return _product(context, [item.extent for item in ranges if item.coord not in coords], frame)


def _product(context: Context, extents: list[Expr], frame: Frame) -> Linear | None:
    """The product of extents, of which at most one may be other than a number."""
    result = Linear.number(1)
    for extent in extents:
        if coordinates(extent) - frame.coords.keys():
            return None
        term = context.term(extent, frame)
        context.saturate()
        if not context.proves(term):
            return None
        if not (result.is_constant or term.is_constant):
            return None
        result = term.times(result.const) if result.is_constant else result.times(term.const)
    return result


# -- posts that are counted by routes -------------------------------------------------------------------------------


def _count_of_routes(model: Model, poster: Family, post: Post) -> Count | None:
    """The count that fits posts of which there is exactly one for each valid route; None if there is none."""
    shared, element = model.element(poster, post)
    for number, route in enumerate(element.routes):
        for count in model.facts.counts:
            if (
                _place_is_counted(shared, element, route, count)
                and _is_one_per_route(model, poster, post, number)
                and _every_route_is_posted(model, poster, post, count)
            ):
                return count
    return None


def _counted_place(context: Context, route: Record, count: Count) -> tuple[Linear, Linear]:
    """Owner and index of the counter that a route is counted at."""
    frame = Frame(rank=route.attributes["src"], coords=route.attributes)
    return route.attributes[count.owner], context.term(count.index, frame)


def _place_is_counted(shared: Context, element: Element, route: Record, count: Count) -> bool:
    """Whether every post goes to where its route is counted."""
    context = shared.copy()
    if not element.is_exact or not _exists(context, route):
        return False
    owner, index = _counted_place(context, route, count)
    context.saturate()
    return context.proves_equal(element.owner, owner) and context.proves_equal(element.row, index)


def _exists(context: Context, route: Record) -> bool:
    return any(context.agree(route.attributes, other.attributes, other.by) for other in context.routes())


def _is_one_per_route(model: Model, poster: Family, post: Post, number: int) -> bool:
    """Whether two posts for the same route are the same post. The route is the one that they look up as `number`."""
    left, one = model.element(poster, post)
    right, other = model.element(poster, post, copy=1)
    context = left.union(right)
    for name, term in one.routes[number].attributes.items():
        context.assume_equal(term, other.routes[number].attributes[name])
    context.saturate()
    pairs = [(one.task.rank, other.task.rank), *((one.coords[name], other.coords[name]) for name in one.coords)]
    return all(context.proves_equal(*pair) for pair in pairs)


def _every_route_is_posted(model: Model, poster: Family, post: Post, count: Count) -> bool:
    """Whether for every valid route of the group there is a post."""
    context = Context(facts=model.facts)
    key = model.facts.kinds[Kind.ROUTE].keys[0]
    route = context.record(Kind.ROUTE, {"src": context.fresh(), "route": context.fresh()}, key)
    frame = Frame(rank=route.attributes["src"], coords=route.attributes)
    for exists in key.exists:
        holds = context.conditions(exists, frame)
        context.assume(*(holds[0] if holds is not None else ()))
    context.saturate()
    owner, index = _counted_place(context, route, count)
    found = witness(context, poster, post, Target(owner=owner, row=index, route=route))
    if found is None:
        return False
    inner, element = found
    return any(
        all(inner.proves_equal(other.attributes[name], route.attributes[name]) for name in ("src", "route"))
        for other in element.routes
    )


def _entry_of_count(context: Context, count: Count, counter: Element) -> Linear | None:
    """The plan's entry that counts the routes of a counter. The counter has to be one that the plan knows."""
    frame = Frame(rank=counter.task.rank, coords={"index": counter.row})
    if isinstance(count.index, Int) and not context.proves_equal(counter.row, Linear.number(count.index.value)):
        return None
    entry = context.term(count.count, frame)
    context.saturate()
    found = context.normal(entry)
    known = (r.attributes.values() for r in context.records if r.exists)
    return entry if any(context.normal(term).same_as(found) for terms in known for term in terms) else None


# -- scopes ---------------------------------------------------------------------------------------------------------


def check_scopes_reach_who_is_meant(model: Model) -> Iterator[Diagnostic]:
    """Where another rank posts: signal, post and wait have scope sys."""
    for signal in model.graph.signals:
        remote = [(poster, post) for poster, post in model.posters[signal.name] if model.is_remote(post)]
        for poster, post in remote:
            if post.scope is not Scope.SYS or signal.scope is not Scope.SYS:
                yield about(
                    "UEP0318",
                    f"`{poster.name}` posts `{signal.name}` of other ranks with scope gpu",
                    poster,
                    note="a release of scope gpu is not seen on another GPU",
                    help="give the post and the signal scope sys",
                )
        for family in model.graph.families:
            for wait in family.waits:
                if remote and wait.signal == signal.name and wait.scope is not Scope.SYS:
                    yield about(
                        "UEP0318",
                        f"`{family.name}` waits for `{signal.name}`, which other ranks post, with scope gpu",
                        family,
                        *(poster for poster, _ in remote),
                        note="an acquire of scope gpu does not see what another GPU has released",
                        help="give the wait scope sys",
                    )
