"""Lowering: from the syntax tree to the OpGraph. Resolves names, types and shapes, and writes every rounding as an op.

The rule of rounding: what arithmetic gives is f32 until it gets a name; the name rounds it, to the declared dtype or
else to that of the program's x. Ops that only move numbers keep the dtype that these have.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from uniep_compiler.diagnostics import Diagnostic, DiagnosticBag, Label, UniepError
from uniep_compiler.frontend import check, syntax
from uniep_compiler.frontend.builder import Builder, Constant, Result
from uniep_compiler.frontend.expressions import Expressions, Found, Scope
from uniep_compiler.frontend.parse import Program
from uniep_compiler.frontend.retype import Retyping, retyping_of
from uniep_compiler.frontend.scope import Header, default_dtype, error
from uniep_compiler.frontend.syntax import Assign, Expr, MoeDecl, Return, Target
from uniep_compiler.ir.ops import OpGraph, Value
from uniep_compiler.ir.types import DType, RoutesType, RowsType, TensorType, Type
from uniep_compiler.source import Span

MAX_ERRORS = 50
"""Errors of one layer that are looked for."""

_ABOUT_NAMES = ("UEP0201", "UEP0202", "UEP0203", "UEP0204", "UEP0211", "UEP0213", "UEP0223", "UEP0224")


def lower(program: Program | MoeDecl) -> OpGraph:
    """The OpGraph of a program's only (or selected) layer.

    Raises UniepError with all errors of names, types and shapes in the program's whole file, whichever layer is asked
    for. A layer's declaration is lowered alone.
    """
    bag = DiagnosticBag()
    if isinstance(program, MoeDecl):
        graph = _lower_moe(program, bag)
        bag.raise_if_errors(program.source)
    else:
        graphs = _lower_file(program, bag)
        bag.raise_if_errors(program.source)
        graph = graphs[program.moe.name.name]
    assert graph is not None
    return graph


def lower_retyped(program: Program, ops: OpGraph, old: DType, new: DType) -> OpGraph:
    """The OpGraph of a program's only (or selected) layer, which is `ops`, in another element type.

    Raises UniepError where what the body says of f32 does not fit that: a value that it keeps in f32 may feed a GEMM.
    """
    bag = DiagnosticBag()
    graph = _lower_moe(program.moe, bag, retyping_of(ops, old, new))
    note = f"this is about the program with {new} for {old}: in its body, f32 stays f32"
    if bag.errors:
        raise UniepError([replace(error, notes=(*error.notes, note)) for error in bag.errors], program.source)
    assert graph is not None
    return graph


def diagnose(program: Program) -> tuple[Diagnostic, ...]:
    """Every error and warning about a program's file beyond its syntax, in the order of the text."""
    bag = DiagnosticBag()
    _lower_file(program, bag)
    return bag.sorted()


def _lower_file(program: Program, bag: DiagnosticBag) -> dict[str, OpGraph | None]:
    graphs = {decl.name.name: _lower_moe(decl, bag) for decl in program.file.moes}
    for schedule_decl, schedule in zip(program.file.schedules, program.file_schedules, strict=True):
        graph = graphs[schedule.moe]
        if graph is not None:
            bag.extend(check.check_schedule(schedule_decl, schedule, graph))
    return graphs


def _lower_moe(decl: MoeDecl, bag: DiagnosticBag, retyping: Retyping | None = None) -> OpGraph | None:
    """The OpGraph of one layer; None if something is wrong, which is then in `bag` with all else that is."""
    of_header = DiagnosticBag()
    header = Header(decl=decl, bag=of_header, retyping=retyping)
    of_header.extend(check.check_dims_known(decl, header))
    of_body = DiagnosticBag()
    graph = _Lowering(decl=decl, bag=of_body, header=header).run()
    if of_header.errors:  # what does not hang on the types that are wrong
        bag.extend(d for d in of_body.diagnostics if d.code in _ABOUT_NAMES)
    else:
        bag.extend(of_body.diagnostics)
    bag.extend(of_header.diagnostics)
    bag.extend(check.check_conditions(decl, header))
    if graph is not None and not of_header.errors:
        bag.extend(check.check_graph(graph, decl))
    return graph


@dataclass(slots=True, kw_only=True)
class _Lowering:
    decl: MoeDecl
    header: Header
    bag: DiagnosticBag
    builder: Builder = field(init=False)
    scope: Scope = field(init=False)
    expressions: Expressions = field(init=False)
    default_dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        self.default_dtype, whose = default_dtype(self.header) or (DType.F32, "")
        rounding = f"a name rounds to {self.default_dtype}{f', the dtype of `{whose}`,' if whose else ''}"
        rounding += " unless it declares another: `h : f32 = ...`"
        self.builder = Builder(bag=self.bag, rounding=rounding)
        self.scope = Scope(later=_definitions(self.decl))
        self.expressions = Expressions(header=self.header, builder=self.builder, scope=self.scope, bag=self.bag)

    def run(self) -> OpGraph | None:
        for param in self.decl.params:
            self.define_param(param)
        results: tuple[str, ...] | None = None
        for statement in self.decl.body:
            match statement:
                case Assign():
                    self.assign(statement)
                case Return():
                    results = self.give_back(statement)
            if len(self.bag.diagnostics) >= MAX_ERRORS:
                return None
        self.bag.extend(check.check_return(self.decl))
        if not self.bag.errors:
            self.bag.extend(check.check_unused(self.decl, self.scope))
        return None if results is None else self.graph(results)

    def graph(self, results: tuple[str, ...]) -> OpGraph:
        params = [(param, self.header.params.get(param.name.name)) for param in self.decl.params]
        values = tuple(
            Value(name=p.name.name, type=type_, span=p.name.span) for p, type_ in params if type_ is not None
        )
        constraints = tuple(map(str, self.decl.constraints))
        return self.builder.finish(self.decl.name.name, values, results, constraints, self.decl.span)

    # Definitions.

    def define_param(self, param: syntax.Param) -> None:
        type_ = self.header.params.get(param.name.name)
        if self.claim(param.name):
            found = self.builder.param(param.name.name, type_, param.name.span) if type_ is not None else None
            self.scope.values[param.name.name] = found

    def claim(self, ident: syntax.Ident) -> bool:
        """Whether the name is free, and from now on defined here."""
        name = ident.name
        if name.startswith("_") and name[1:].isdigit():
            help_ = "`_1`, `_2`, ... are the compiler's names for unnamed values"
            self.bag.add(error("UEP0224", f"`{name}` is reserved", ident.span, "choose another name", help_))
        elif name in self.scope.defined:
            self.bag.add(self.twice(ident))
            self.scope.nameless += 1
        elif name in self.header.dims:
            message = f"`{name}` is a dim already"
            self.bag.add(error("UEP0202", message, ident.span, "a value of the same name", "rename one of them"))
        else:
            self.scope.defined[name] = ident.span
            return True
        self.scope.values.setdefault(name, None)
        return False

    def twice(self, ident: syntax.Ident) -> Diagnostic:
        labels = (
            Label(span=self.scope.defined[ident.name], text="first defined here", primary=False),
            Label(span=ident.span, text="defined again here"),
        )
        help_ = "a name stands for one value; choose another one here"
        return Diagnostic(code="UEP0202", message=f"`{ident.name}` is defined twice", labels=labels, help=help_)

    def assign(self, statement: Assign) -> None:
        for target, result in zip(statement.targets, self.results_of(statement), strict=True):
            name, bound = target.name.name, self.bind(target, result)
            if name != "_" and self.claim(target.name):
                self.scope.values[name] = bound
                if isinstance(bound, Result):
                    self.builder.name(bound, name)

    def results_of(self, statement: Assign) -> tuple[Found, ...]:
        """What the right side gives to each target."""
        targets = statement.targets
        found = self.expressions.lower_all(statement.value)
        if found is not None and len(found) == len(targets):
            return found
        if found is not None:
            self.scope.nameless += max(0, len(found) - len(targets))
            labels = (
                Label(span=targets[0].span.to(targets[-1].span), text=_counted(len(targets), "name")),
                Label(span=statement.value.span, text=_counted(len(found), "value"), primary=False),
            )
            message = f"{_counted(len(targets), 'name')} for {_counted(len(found), 'value')}"
            help_ = "write one name for each value; `_` stands for one that is not needed"
            self.bag.add(Diagnostic(code="UEP0213", message=message, labels=labels, help=help_))
        return (None,) * len(targets)

    def bind(self, target: Target, found: Found) -> Found:
        """What the target stands for: the value, rounded where naming it does so."""
        declared = self.header.dtype_in_body(target.dtype) if target.dtype is not None else None
        if target.dtype is not None and declared is None:
            return None
        if not isinstance(found, Result) or (found.rounded and declared is None):
            return self.constant(target, found) if isinstance(found, Constant) else found
        type_ = self.builder.types[found.handle]
        if declared is None or (not isinstance(type_, RoutesType) and type_.dtype.is_float and declared.is_float):
            return self.builder.round(found, declared or self.default_dtype, target.span)
        message = f"{self.builder.show(type_)} cannot become {declared}"
        span = target.dtype.span if target.dtype is not None else target.span
        self.bag.add(error("UEP0208", message, span, "not a rounding", "remove the dtype"))
        return None

    def constant(self, target: Target, found: Constant) -> Found:
        if target.dtype is not None:
            self.bag.add(
                error("UEP0208", "a constant has no dtype", target.dtype.span, "it is f32", "remove the dtype")
            )
        return found

    # The end of the layer.

    def give_back(self, statement: Return) -> tuple[str, ...] | None:
        """The handles of the returned values, of the types that the header declares."""
        found = [self.expressions.lower(value) for value in statement.values]
        declared = self.decl.results
        if len(found) != len(declared):
            labels = (
                Label(span=declared[0].span.to(declared[-1].span), text=f"{len(declared)} declared", primary=False),
                Label(span=statement.span, text=f"{len(found)} returned"),
            )
            message = f"{_counted(len(found), 'result')}, and the header says {len(declared)}"
            help_ = "return what the header says"
            self.bag.add(Diagnostic(code="UEP0212", message=message, labels=labels, help=help_))
            return None
        handles = [self.result(*each) for each in zip(statement.values, found, declared, strict=True)]
        known = tuple(handle for handle in handles if handle is not None)
        return known if len(known) == len(handles) else None

    def result(self, expr: Expr, found: Found, declared: syntax.TypeExpr) -> str | None:
        """The handle of one result, rounded to the declared dtype if nothing has rounded it yet."""
        handles = {name: value.handle for name, value in self.scope.values.items() if isinstance(value, Result)}
        wanted = self.declared(declared, found, handles)
        if isinstance(found, Constant):
            self.bag.add(error("UEP0212", "a constant is returned", expr.span, "this is a constant", "return a value"))
        if not isinstance(found, Result) or wanted is None:
            return None
        value: Result | None = found
        if not found.rounded and not isinstance(wanted, RoutesType) and wanted.dtype.is_float:
            value = self.builder.round(found, wanted.dtype, expr.span)
        if value is None:
            return None
        type_ = self.builder.types[value.handle]
        if type_ == _with_handles(wanted, handles):
            return value.handle
        self.bag.add(self.misfit(expr, type_, declared, wanted))
        return None

    def declared(self, declared: syntax.TypeExpr, found: Found, handles: dict[str, str]) -> Type | None:
        """The type that the header declares for the result `found`, in the element type that is asked for."""
        broken = dict.fromkeys(name for name, value in self.scope.values.items() if value is None)
        known = {name: self.builder.types[handle] for name, handle in handles.items()}
        wanted = self.header.resolve(declared, {**broken, **known})
        if self.header.retyping is None or not isinstance(wanted, TensorType | RowsType):
            return wanted
        type_ = self.builder.types[found.handle] if isinstance(found, Result) and found.rounded else None
        return self.header.retyping.result(wanted, None if isinstance(type_, RoutesType) else type_)

    def misfit(self, expr: Expr, type_: Type, declared: syntax.TypeExpr, wanted: Type) -> Diagnostic:
        labels = (
            Label(span=declared.span, text="declared here", primary=False),
            Label(span=expr.span, text=f"this is {self.builder.show(type_)}"),
        )
        message = f"the result is {self.builder.show(type_)}, and the header says {wanted}"
        help_ = "change the header, or what is returned"
        if isinstance(type_, RowsType) and isinstance(wanted, TensorType):
            help_ = (
                f"`combine({syntax.text_of(expr)})` sums the rows of each token; with weights, `combine(rows, weights)`"
            )
        elif not isinstance(wanted, RoutesType) and not isinstance(type_, RoutesType) and wanted.shape == type_.shape:
            help_ = f"write `cast({syntax.text_of(expr)}, {wanted.dtype})`, or change the header"
        return Diagnostic(code="UEP0212", message=message, labels=labels, help=help_)


def _definitions(decl: MoeDecl) -> dict[str, Span]:
    """Where the body defines each name first."""
    assigns = [statement for statement in decl.body if isinstance(statement, Assign)]
    targets = [target for statement in assigns for target in statement.targets]
    return {target.name.name: target.name.span for target in reversed(targets)}


def _with_handles(type_: Type, handles: dict[str, str]) -> Type:
    if isinstance(type_, RowsType):
        return RowsType(dtype=type_.dtype, routes=handles[type_.routes], shape=type_.shape)
    return type_


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"
