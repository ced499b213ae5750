"""Jinja2's immutable sandbox with limits: what a template does is paid for from the `Budget` of a rendering.

The sandbox keeps a template from reaching Python, but not from looping or from doubling a string. So the
parsed template is changed before it is compiled: loops and macros report each turn, and what builds strings
or containers goes through functions that weigh it. Calls, operators, filters and output have hooks in Jinja2.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any

from jinja2 import Template, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from headrace.errors import TemplateError
from headrace.models.template_limits import Budget

# No template can write a name with a space in it.
_BUDGET = "headrace budget"

# What templates of published models use; those that can write much are checked in `_check_filter`.
_FILTERS = {
    *("abs", "attr", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float"),
    *("format", "groupby", "indent", "int", "items", "join", "last", "length", "list", "lower", "map"),
    *("max", "min", "reject", "rejectattr", "replace", "reverse", "round", "safe", "select", "selectattr"),
    *("sort", "string", "sum", "title", "tojson", "trim", "unique", "upper", "wordcount"),
}
# Those that copy nothing: lists may be asked for their length in every turn of a loop.
_FREE_FILTERS = {
    *("abs", "attr", "count", "d", "default", "first", "float", "int", "items", "last", "length", "map"),
    *("reject", "rejectattr", "select", "selectattr"),
}
_GLOBALS = frozenset(["range", "dict", "cycler", "joiner"])

# Methods of str, Markup and int that write much for a small argument or are slow, and that no template needs.
_UNSAFE_METHODS = frozenset(
    [
        *("center", "ljust", "rjust", "zfill", "expandtabs", "translate", "encode", "to_bytes"),
        *("striptags", "unescape"),
    ]
)

_MAX_INDENT = 16
_MAX_DIGITS = 100


def budget_variables(budget: Budget) -> dict[str, Any]:
    """The variables that put a rendering under `budget`."""
    return {_BUDGET: budget}


def _budget(context: Context) -> Budget:
    budget: Budget = context.parent[_BUDGET]
    return budget


class _Namespace(Namespace):
    """A namespace that does not write out what it holds."""

    def __repr__(self) -> str:
        return "<Namespace>"


class _Generation(Extension):
    """Reads `{% generation %}…{% endgeneration %}`, which marks answers for training, as what is inside."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and runs templates under a budget. Whitespace is treated as Hugging Face transformers do."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
        self.finalize = _output
        self.filters["tojson"] = _to_json
        self.filters = {name: _limited(name, self.filters[name]) for name in _FILTERS}
        self.globals = {name: self.globals[name] for name in _GLOBALS} | {"namespace": _Namespace}

    def compile_limited(self, source: str) -> Template:
        """The compiled template. Raises what Jinja2 and Python's compiler raise."""
        tree = _Instrument().visit(self.parse(source))
        return Template.from_code(self, self.compile(tree, filename="<chat template>"), self.globals)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        budget = _budget(__context)
        budget.tick()
        if isinstance(__obj, _Hook):
            return __obj.run(budget, *args)
        args = tuple(_drained(budget, arg) for arg in args)
        _check_method(budget, __obj, args, kwargs)
        made = super().call(__context, __obj, *args, **kwargs)
        if isinstance(made, (str, list, tuple, dict)):
            budget.spend(budget.weigh(made))
        return made

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _budget(context).check_operator(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, (str, int)) and attr in _UNSAFE_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)


class _Hook:
    """A function that the instrumented template calls, with the budget as first argument."""

    def __init__(self, run: Callable[..., Any]):
        self.run = run


def _turn(budget: Budget, size: int) -> bool:
    """A turn of a loop or macro whose body holds `size` characters of plain text."""
    budget.spend(size)
    return True


def _concat(budget: Budget, *parts: Any) -> str:
    budget.spend(sum(budget.weigh(part) for part in parts))
    return "".join(str(part) for part in parts)


def _contained(budget: Budget, value: Any) -> Any:
    """A new container, which may hold a small one so often that comparing or writing it would not end."""
    budget.weigh(value)
    return value


def _sliced(budget: Budget, value: Any) -> Any:
    """A slice, no heavier than what it was cut from."""
    budget.spend(len(value))
    return value


# Environment attributes, since that is what a syntax tree can name without a template being able to.
LimitedEnvironment.headrace_turn = _Hook(_turn)  # type: ignore[attr-defined]
LimitedEnvironment.headrace_concat = _Hook(_concat)  # type: ignore[attr-defined]
LimitedEnvironment.headrace_contained = _Hook(_contained)  # type: ignore[attr-defined]
LimitedEnvironment.headrace_sliced = _Hook(_sliced)  # type: ignore[attr-defined]


class _Instrument(NodeTransformer):
    """Puts the hooks into a syntax tree."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        turn = _hook("turn", nodes.Const(_plain_text(node.body)))
        self.generic_visit(node)
        if node.test is not None:  # decides on every element, those that are left out as well
            node.test = nodes.And(_hook("turn", nodes.Const(0)), node.test)
        node.body.insert(0, nodes.ExprStmt(turn))
        return node

    def visit_Macro(self, node: nodes.Macro | nodes.CallBlock) -> nodes.Node:  # noqa: N802
        turn = _hook("turn", nodes.Const(_plain_text(node.body)))
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(turn))
        return node

    visit_CallBlock = visit_Macro  # noqa: N815

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _hook("concat", *node.nodes)

    def visit_List(self, node: nodes.List | nodes.Dict) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _hook("contained", node)

    visit_Dict = visit_List  # noqa: N815

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _hook("contained", node) if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _hook("sliced", node) if isinstance(node.arg, nodes.Slice) else node


def _hook(name: str, *args: nodes.Expr) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(f"headrace_{name}"), list(args), [], None, None)


def _plain_text(body: list[nodes.Node]) -> int:
    return sum(len(data.data) for node in body for data in _template_data(node))


def _template_data(node: nodes.Node) -> list[nodes.TemplateData]:
    found = list(node.find_all(nodes.TemplateData))
    return [node, *found] if isinstance(node, nodes.TemplateData) else found


@pass_context
def _output(context: Context, value: Any) -> Any:
    """Every expression that is written. Having a context, it also keeps Jinja2 from folding constants."""
    budget = _budget(context)
    budget.spend(budget.weigh(value))
    return value


def _limited(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter, paid for."""
    needs = getattr(getattr(function, "jinja_pass_arg", None), "name", "")

    @wraps(function)
    def run(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        budget = _budget(context)
        budget.tick()
        if name not in _FREE_FILTERS:
            value = _drained(budget, value)
            _check_filter(budget, name, budget.weigh((value, args, kwargs)), value, args, kwargs)
        first = {"context": context, "eval_context": context.eval_ctx, "environment": context.environment}
        given = (first[needs], value, *args) if needs else (value, *args)
        made = function(*given, **kwargs)
        if name not in _FREE_FILTERS and isinstance(made, (str, list, tuple, dict)):
            budget.spend(budget.weigh(made))
        return made

    return pass_context(run)


def _drained(budget: Budget, value: Any) -> Any:
    """A list of what an iterator yields, each element paid for; other values as they are."""
    if not isinstance(value, Iterator) or isinstance(value, LoopContext):
        return value
    elements = []
    for element in value:
        budget.tick()
        budget.spend(budget.weigh(element))
        elements.append(element)
    return elements


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As Hugging Face transformers write it: Unicode as it is, nothing escaped for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _check_filter(
    budget: Budget, name: str, weight: int, value: Any, args: Any, kwargs: Mapping[str, Any]
) -> None:
    """Pays in advance for filters whose result is not in proportion to what they are given."""
    given = [*args, *kwargs.values()]
    if name == "replace" and len(given) > 1:
        budget.check_replace(str(value), str(given[0]), str(given[1]))
    elif name == "join":
        separator = len(str(args[0] if args else kwargs.get("d", "")))
        budget.spend(weight * (1 + separator))
    elif name == "format":
        budget.check_format(str(value), *given)
    elif name in ("indent", "tojson"):
        width = sum(item if isinstance(item, int) else budget.weigh(item) for item in given)
        if width > _MAX_INDENT:
            raise TemplateError(f"the chat template indents by {width}, more than {_MAX_INDENT}")
        budget.spend(weight * (1 + width))
    elif name == "sum" and not all(isinstance(item, (int, float, str)) for item in given):
        raise TemplateError("the chat template sums up something else than numbers")
    elif name == "round" and any(isinstance(item, int) and abs(item) > _MAX_DIGITS for item in given):
        raise TemplateError(f"the chat template rounds to more than {_MAX_DIGITS} digits")


def _check_method(budget: Budget, method: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
    """Pays in advance for methods of strings that can write more than they are given."""
    text, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
    # The sandbox hands out str.format wrapped, and __wrapped__ is the method itself.
    text = getattr(getattr(method, "__wrapped__", None), "__self__", text)
    if not isinstance(text, str):
        return
    if name == "replace" and len(args) > 1 and isinstance(args[0], str) and isinstance(args[1], str):
        budget.check_replace(text, args[0], args[1])
    elif name == "join":
        budget.spend(budget.weigh(args) * (1 + len(text)))
    elif name in ("format", "format_map"):
        budget.check_format(text, *args, *kwargs.values())
