"""A calculator for arithmetic expressions that come from clients: it can compute, and nothing else.

Python's own parser reads the text; only the kinds of syntax listed here are carried out (no attributes, no calls of
anything but the named functions), and numbers stay bounded.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

_MAX_LENGTH = 4096
# Largest base and exponent of `**`, and largest shift: beyond them a result can fill the memory.
_MAX_POWER = 4000
_MAX_SHIFT = 10_000
_MAX_BITS = 100_000


class ExpressionError(ValueError):
    """The expression cannot be computed. The message says what is not understood."""


class UnknownNameError(ExpressionError):
    """A name or function that does not exist."""


def _power(base: Any, exponent: Any) -> Any:
    if abs(base) > _MAX_POWER or abs(exponent) > _MAX_POWER:
        raise ExpressionError(f"{base} ** {exponent} is too large")
    return base**exponent


def _shift(function: Callable) -> Callable:
    def shift(value: int, by: int) -> int:
        if by > _MAX_SHIFT:
            raise ExpressionError(f"a shift by {by} is too large")
        return function(value, by)

    return shift


def _sum(*values: Any) -> Any:
    """Of a list, or of the arguments themselves."""
    return sum(values[0]) if len(values) == 1 and isinstance(values[0], (list, tuple)) else sum(values)


FUNCTIONS: Mapping[str, Callable] = {
    "abs": abs, "ceil": math.ceil, "cos": math.cos, "float": float, "floor": math.floor, "int": int,
    "log": math.log, "log10": math.log10, "log2": math.log2, "max": max, "min": min, "pow": _power,
    "round": round, "sin": math.sin, "sqrt": math.sqrt, "sum": _sum, "tan": math.tan,
}  # fmt: skip

_BINARY = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: _power, ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_, ast.BitXor: operator.xor, ast.LShift: _shift(operator.lshift),
    ast.RShift: _shift(operator.rshift),
}  # fmt: skip
_UNARY = {
    ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Not: operator.not_, ast.Invert: operator.invert,
}  # fmt: skip
_COMPARE = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip


def evaluate(text: str, names: Mapping[str, Any]) -> Any:
    """Value of an expression; of several, separated by `;` or line ends, the first.

    names: variables. Numbers, booleans, comparisons, `and`/`or`/`not`, `a if b else c`, indexing of a variable, and
    FUNCTIONS are understood. Raises ExpressionError, UnknownNameError, or what the arithmetic raises.
    """
    text = text.strip()
    if not text:
        raise ExpressionError("the expression is empty")
    if len(text) > _MAX_LENGTH:
        raise ExpressionError(f"the expression has {len(text)} characters, more than {_MAX_LENGTH}")
    try:
        statements = ast.parse(text).body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ExpressionError(f"{text!r} is not an expression: {error}") from None
    if not isinstance(statements[0], ast.Expr):
        raise ExpressionError(f"{text!r} is not an expression")
    try:
        return _value(statements[0].value, names)
    except RecursionError:
        raise ExpressionError("the expression is nested too deeply") from None


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float()):
            return node.value
        case ast.Name():
            return _look_up(node.id, names)
        case ast.BinOp(op=op) if type(op) in _BINARY:
            return _bounded(_BINARY[type(op)](_value(node.left, names), _value(node.right, names)))
        case ast.UnaryOp(op=op):
            return _UNARY[type(op)](_value(node.operand, names))
        case ast.BoolOp():
            return _boolean(node, names)
        case ast.Compare():
            return _comparison(node, names)
        case ast.IfExp():
            return _value(node.body if _value(node.test, names) else node.orelse, names)
        case ast.Subscript(value=ast.Name()):
            return _value(node.value, names)[_value(node.slice, names)]
        case ast.Call(func=ast.Name(), keywords=[]):
            if node.func.id not in FUNCTIONS:
                raise UnknownNameError(f"there is no function {node.func.id!r}")
            return _bounded(FUNCTIONS[node.func.id](*(_value(argument, names) for argument in node.args)))
    raise ExpressionError(f"{ast.unparse(node)!r} is not allowed in an expression")


def _look_up(name: str, names: Mapping[str, Any]) -> Any:
    if name not in names:
        raise UnknownNameError(f"there is no value {name!r}; there are {', '.join(names) or 'none'}")
    return names[name]


def _boolean(node: ast.BoolOp, names: Mapping[str, Any]) -> Any:
    stop = isinstance(node.op, ast.Or)
    for operand in node.values:
        value = _value(operand, names)
        if bool(value) is stop:
            break
    return value


def _comparison(node: ast.Compare, names: Mapping[str, Any]) -> bool:
    left = _value(node.left, names)
    for op, operand in zip(node.ops, node.comparators):
        right = _value(operand, names)
        if type(op) not in _COMPARE:
            raise ExpressionError(f"{ast.unparse(node)!r} is not allowed in an expression")
        if not _COMPARE[type(op)](left, right):
            return False
        left = right
    return True


def _bounded(value: Any) -> Any:
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        raise ExpressionError("a number became too large")
    return value
