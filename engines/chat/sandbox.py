"""Jinja's sandbox with the bounds of engines.chat.bounds. Jinja itself keeps a template away from Python's internals, but lets it loop, and
grow texts, without bounds.

Statements that combine few values run as jinja compiles them, so that usual templates do not slow down: their result is at most a small
multiple of their input, and is checked when it is kept. In a statement with many variables, every operator and filter is checked.
"""

from __future__ import annotations

import sys
from types import BuiltinMethodType, MethodType
from typing import Any, Final, NoReturn

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError, TemplateAssertionError, TemplateSyntaxError
from jinja2.meta import TrackingCodeGenerator
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from engines.chat import bounds
from engines.chat.bounds import MOST_CHARS, added, appended, held, joined, kept, made, multiplied, tick
from engines.chat.growth import GONE, LONG, METHODS, UNSAFE, formatted, formatting, join_method, joining, method, watch, weighing

FEW: Final = 12
"""Variables of a statement that is not watched: each may be as long as a text may be."""
MOST_SOURCE: Final = 512 * 1024
"""Characters of a template."""
_TEXTS: Final = frozenset(("trim", "tojson", "string", "upper", "lower", "replace", "join", "indent", "title", "capitalize"))
"""Filters that give a text."""
_METHODS: Final = frozenset(("strip", "lstrip", "rstrip", "replace", "upper", "lower", "join", "format", "title"))
"""Methods of texts that give one."""
_GROWS: Final[Any] = (nodes.Concat, nodes.BinExpr, nodes.Call, nodes.Filter, nodes.Slice)
_WATCHED: Final = frozenset((*METHODS, "append", "format", "format_map", "join"))
_SPLITS: Final = frozenset(("rsplit", "split", "splitlines"))
_OF_DICT: Final = frozenset(dir(dict))
_READS: Final = frozenset(("get", "items", "keys", "values"))
"""Methods of a dict that change nothing."""
_OF_TEXT: Final = frozenset(name for name in dir(str) if not name.startswith("_")) - UNSAFE - (_WATCHED - _SPLITS)
"""Methods of a text that need not be watched, if it is not LONG."""
_OF_LOOP: Final = frozenset(name for name in dir(LoopContext) if not name.startswith("_"))
_OWNERS: Final = frozenset((str, dict, list))
_OPERATORS: Final = {"eq": "==", "ne": "!=", "gt": ">", "gteq": ">=", "lt": "<", "lteq": "<=", "in": "in", "notin": "not in"}


class Space(Namespace):
    """A namespace is not written out with what it holds."""

    def __repr__(self) -> str:
        return "<Namespace>"


class _Constants(CodeGenerator):
    """Compiles literals only. Jinja evaluates every constant expression while it compiles, once for each level of nesting, without
    bounds."""

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        if not isinstance(node, nodes.Const | nodes.TemplateData):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)


class _Names(_Constants, TrackingCodeGenerator):
    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.optimizer = None


class _Code(_Constants):
    """Watches what may grow."""

    def visit_Assign(self, node: nodes.Assign, frame: Frame) -> None:
        if _grows(node.node):
            value = nodes.Call(nodes.EnvironmentAttribute("kept"), [node.node], [], None, None, lineno=node.lineno)
            value.bare = True  # type: ignore[attr-defined]
            node = nodes.Assign(node.target, value, lineno=node.lineno)
        super().visit_Assign(node, frame)

    def visit_AssignBlock(self, node: nodes.AssignBlock, frame: Frame) -> None:
        self.writeline("environment.tick", node)
        super().visit_AssignBlock(node, frame)

    def visit_FilterBlock(self, node: nodes.FilterBlock, frame: Frame) -> None:
        self.writeline("environment.tick", node)
        super().visit_FilterBlock(node, frame)

    def visit_Output(self, node: nodes.Output, frame: Frame) -> None:
        """What a macro or a block writes is held until its end."""
        if frame.buffer is not None and _grows(node):
            self.writeline("environment.tick", node)
        super().visit_Output(node, frame)

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:
        if not hasattr(node, "bare"):
            super().visit_Call(node, frame, forward_caller=forward_caller)
            return
        self.write("environment.kept(")
        self.visit(node.args[0], frame)
        self.write(")")

    def visit_Add(self, node: nodes.BinExpr, frame: Frame) -> None:
        self._binary("+", node, frame, plain=not _watched(node) and (_text(node) or _number(node)))

    def visit_Mod(self, node: nodes.BinExpr, frame: Frame) -> None:
        self._binary("%", node, frame, plain=isinstance(node.left, nodes.Getattr) and _of_loop(node.left.node))

    def _binary(self, operator: str, node: nodes.BinExpr, frame: Frame, *, plain: bool) -> None:
        self.write("(" if plain else f"environment.call_binop(context, {operator!r}, ")
        self.visit(node.left, frame)
        self.write(f" {operator} " if plain else ", ")
        self.visit(node.right, frame)
        self.write(")")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        if not _watched(node) and not self._odd:
            super().visit_Concat(node, frame)
            return
        self.write("environment.concat((")
        for part in node.nodes:
            self._weighed(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Filter(self, node: nodes.Filter, frame: Frame) -> None:
        self._step(node, frame, super().visit_Filter)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        self._step(node, frame, super().visit_Getitem)

    def _step(self, node: nodes.Expr, frame: Frame, visit: Any) -> None:
        self.write("(environment.tick or " if _watched(node) else "")
        visit(node, frame)
        self.write(")" if _watched(node) else "")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self._made(node, node.items, frame, super().visit_List)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        self._made(node, node.items if node.ctx == "load" else [], frame, super().visit_Tuple)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self._made(node, [side for pair in node.items for side in (pair.key, pair.value)], frame, super().visit_Dict)

    def _made(self, node: Any, items: list[Any], frame: Frame, visit: Any) -> None:
        plain = all(isinstance(item, nodes.Const) for item in items)
        self.write("" if plain else "environment.held(")
        visit(node, frame)
        self.write("" if plain else ")")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        """Lists that hold each other many times are equal after a very long look."""
        if not self._odd:
            super().visit_Compare(node, frame)
            return
        self.write("(")
        self._weighed(node.expr, frame)
        for operand in node.ops:
            self.write(f" {_OPERATORS[operand.op]} ")
            self._weighed(operand.expr, frame)
        self.write(")")

    def _weighed(self, node: nodes.Expr, frame: Frame) -> None:
        self.write("environment.held(")
        self.visit(node, frame)
        self.write(")")

    @property
    def _odd(self) -> bool:
        return bool(self.environment.odd)  # type: ignore[attr-defined]


class _Steps(NodeTransformer):
    """Marks the expressions of statements that put many things together, and parts outputs that write very many."""

    def visit_Output(self, node: nodes.Output) -> Any:
        if _names([node]) <= FEW:
            return node
        for child in node.nodes:
            _mark([child])
        return [nodes.Output([child], lineno=child.lineno) for child in node.nodes]

    def generic_visit(self, node: nodes.Node, *arguments: Any, **named: Any) -> nodes.Node:
        if isinstance(node, nodes.Stmt):
            _mark([child for child in node.iter_child_nodes() if not isinstance(child, nodes.Stmt)],
                  always=isinstance(node, nodes.Macro | nodes.CallBlock | nodes.With))  # fmt: skip
        return super().generic_visit(node, *arguments, **named)


class BoundedSandbox(ImmutableSandboxedEnvironment):
    """The sandbox of chat templates. Kimi's collect messages in lists of their own: a request's messages are copies, and what a template
    adds, it alone sees.

    odd: the template fills lists after it has made them, so whatever it hands on, writes out or compares is weighed then.
    """

    code_generator_class = _Code
    intercepted_binops = frozenset(("*", "**"))
    concat = staticmethod(joined)
    held = staticmethod(held)
    kept = staticmethod(kept)

    def __init__(self, *, odd: bool = False, **options: Any) -> None:
        super().__init__(optimized=False, finalize=held if odd else None, **options)
        self.odd = odd
        for name in ("lipsum", "cycler"):  # text by chance, as long as one likes: nothing of a prompt
            del self.globals[name]
        self.globals["namespace"] = Space
        self.globals["dict"] = _dict
        for name in GONE:
            del self.filters[name]
        watch(self.filters)
        self.filters["join"] = joining(self.filters["join"])
        self.filters["held"] = held

    def weigh_all(self) -> None:
        """Of an odd template, once all filters and tests are there."""
        tables: tuple[dict[str, Any], ...] = (self.filters, self.tests)
        for table in tables:
            for name, call in table.items():
                table[name] = weighing(call, 0 if getattr(call, "jinja_pass_arg", None) is None else 1)

    def handle_exception(self, source: str | None = None) -> NoReturn:
        """Without jinja's frames, which show the template's own lines and hold what it held until the collector finds them."""
        _said(sys.exception())
        raise  # jinja calls this where it has caught something

    @property
    def tick(self) -> None:
        """A step."""
        if bounds._monotonic() > bounds._here.until:
            tick()

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > MOST_SOURCE:
            raise TemplateAssertionError(f"it has more than {MOST_SOURCE} characters", 1)
        tree: nodes.Template = _Steps().visit(super()._parse(source, name, filename))
        for loop in tree.find_all(nodes.For):
            loop.body.insert(0, nodes.ExprStmt(nodes.EnvironmentAttribute("tick"), lineno=loop.lineno))
        macros: list[nodes.Macro | nodes.CallBlock] = [*tree.find_all(nodes.Macro), *tree.find_all(nodes.CallBlock)]
        for macro in macros:
            for given in ("kwargs", "varargs"):
                if any(node.name == given for part in macro.body for node in _all(part, nodes.Name)):
                    weighed = nodes.Filter(nodes.Name(given, "load"), "held", [], [], None, None, lineno=macro.lineno)
                    macro.body.insert(0, nodes.ExprStmt(weighed, lineno=macro.lineno))
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Also `pop` of lists."""
        return (type(obj) is list and attr == "pop") or (attr not in UNSAFE and super().is_safe_attribute(obj, attr, value))

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Does what jinja's own does, with a short cut for what usual templates ask for, which makes up for the checks."""
        kind = type(obj)
        if kind is dict:
            if attribute not in _OF_DICT:
                return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
            if attribute in _READS:
                return getattr(obj, attribute)
        elif kind is str:
            if attribute in _OF_TEXT and len(obj) <= LONG:
                return getattr(obj, attribute)
        elif kind is LoopContext and attribute in _OF_LOOP:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def wrap_str_format(self, value: Any) -> Any:
        """Jinja asks for each attribute that Python knows: methods that make much of little are watched."""
        kind = type(value)
        if (kind is not BuiltinMethodType and kind is not MethodType) or (name := value.__name__) not in _WATCHED:
            return None
        owner = value.__self__
        if type(owner) is list:
            return (lambda element: appended(owner, element)) if name == "append" and self.odd else None
        if not isinstance(owner, str | bytes) or (name in _SPLITS and len(owner) <= LONG):
            return None
        if name in METHODS:
            return method(value, METHODS[name])
        if name == "join":
            return join_method(value)
        format = super().wrap_str_format(value)
        return None if format is None else formatting(str(owner), format)

    def call(__self, __context: Context, __obj: Any, *arguments: Any, **named: Any) -> Any:
        """Of macros, functions and methods, with texts that are no longer than one may be kept."""
        if bounds._monotonic() > bounds._here.until:
            tick()
        if named:  # what jinja adds is for callables that want a context, of which a template has none
            named.pop("_loop_vars", None)
            named.pop("_block_vars", None)
        for value in (*arguments, *named.values()) if named else arguments:
            if isinstance(value, str | bytes) and len(value) > MOST_CHARS:
                made(len(value))
        if __self.odd:
            for value in (*arguments, *named.values(), getattr(__obj, "__self__", None)):
                held(value)
        if type(__obj) is BuiltinMethodType and type(__obj.__self__) in _OWNERS:
            return __obj(*arguments, **named)  # of these, jinja would find that they are safe, and want no context
        if not __self.is_safe_callable(__obj):
            raise SecurityError(f"{__obj!r} is not safely callable")
        return __context.call(__obj, *arguments, **named)

    def call_filter(self, *arguments: Any, **named: Any) -> Any:
        """Of `map` and the like, for each element."""
        _ = self.tick
        return super().call_filter(*arguments, **named)

    def call_test(self, *arguments: Any, **named: Any) -> Any:
        """Of `select` and the like, for each element."""
        _ = self.tick
        return super().call_test(*arguments, **named)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _ = self.tick
        if operator == "+":
            return added(left, right)
        if operator == "%":
            if isinstance(left, str | bytes):
                formatted(left, right)
        else:
            multiplied(operator, left, right)
        return self.binop_table[operator](left, right)


def odd(tree: nodes.Template) -> bool:
    """Whether a template may fill lists that it has made already."""
    return any(node.attr == "append" for node in tree.find_all(nodes.Getattr)) or any(
        isinstance(node.value, str) and "append" in node.value for node in tree.find_all(nodes.Const)
    )


def undeclared(tree: nodes.Template) -> set[str]:
    """Variables that a template expects to be given."""
    names = _Names(tree.environment)
    names.visit(tree)
    return names.undeclared_identifiers


def _said(error: BaseException | None) -> None:
    if isinstance(error, TemplateSyntaxError):
        error.translated = True  # the message alone


def _dict(*arguments: Any, **named: Any) -> dict[Any, Any]:
    made: dict[Any, Any] = held(dict(*arguments, **named))
    return made


def _all(node: nodes.Node, kind: Any) -> list[Any]:
    return [*([node] if isinstance(node, kind) else []), *node.find_all(kind)]


def _names(found: list[Any]) -> int:
    return sum(len(_all(node, nodes.Name)) for node in found)


def _mark(found: list[Any], *, always: bool = False) -> None:
    if always or _names(found) > FEW:
        for node in found:
            for one in _all(node, (nodes.BinExpr, nodes.Concat, nodes.Filter, nodes.Getitem)):
                one.watched = True


def _watched(node: nodes.Node) -> bool:
    return hasattr(node, "watched")


def _grows(node: nodes.Node) -> bool:
    return isinstance(node, _GROWS) or node.find(_GROWS) is not None


def _text(node: nodes.Node) -> bool:
    """Whether this is a text, or an error."""
    if isinstance(node, nodes.Const):
        return isinstance(node.value, str)
    if isinstance(node, nodes.Add):
        return _text(node.left) or _text(node.right)
    if isinstance(node, nodes.Call):
        return isinstance(node.node, nodes.Getattr) and node.node.attr in _METHODS
    return isinstance(node, nodes.Concat | nodes.TemplateData) or (isinstance(node, nodes.Filter) and node.name in _TEXTS)


def _number(node: nodes.BinExpr) -> bool:
    return any(isinstance(side, nodes.Const) and isinstance(side.value, int | float) for side in (node.left, node.right))


def _of_loop(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Name) and node.name == "loop"
