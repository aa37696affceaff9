"""The mutations of a file: each is its text with one comparison, condition, number or statement changed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A file of the package with one change: in these lines, this before and that after it."""

    path: Path
    lines: range
    before: str
    after: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.lines.start}: {' '.join(self.before.split())} -> {self.after}"


def mutants(path: Path, package: Path) -> Iterator[Mutant]:
    """The mutations of this file of the package, in the order of its lines."""
    text = path.read_bytes()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for whole in _nodes(ast.parse(text)):
        for node, after in _changes(whole):
            begin = starts[node.lineno - 1] + node.col_offset
            end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
            changed = text[:begin] + after.encode() + text[end:]
            yield Mutant(
                path.relative_to(package),
                range(node.lineno, (node.end_lineno or node.lineno) + 1),
                text[begin:end].decode(),
                after,
                changed.decode(),
            )


def _nodes(tree: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """What runs: neither annotations, docstrings and texts, nor what type checkers alone read."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "type_params", "slice"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, ast.AST) or isinstance(node, ast.JoinedStr) or _is_for_checkers(node):
                continue
            if isinstance(node, (ast.expr, ast.stmt)):
                yield node
            yield from _nodes(node)


def _is_for_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def _changes(node: ast.expr | ast.stmt) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """What to write in place of this node, or of a part of it."""
    yield from _other_values(node)
    yield from _other_flow(node)


def _other_values(node: ast.expr | ast.stmt) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=others):
            yield node, _text(ast.Compare(left, [_OPPOSITES[type(operator)]()], others))
        case ast.BoolOp(op=operator, values=values):
            for number in range(len(values)):
                rest = values[:number] + values[number + 1 :]
                yield node, _text(ast.BoolOp(operator, rest) if rest[1:] else rest[0])
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, _text(operand)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
            if not _is_text(left) and not _is_text(right):
                yield node, _text(ast.BinOp(left, _OPERATORS[type(operator)](), right))
        case ast.Constant(value=bool() as value):
            yield node, repr(not value)
        case ast.Constant(value=(int() | float()) as value):
            yield node, repr(value + 1)


def _other_flow(node: ast.expr | ast.stmt) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            if not isinstance(test, (ast.Compare, ast.BoolOp, ast.UnaryOp)):  # these have their own
                yield test, f"(not {_text(test)})"
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield node, "return None"
        case ast.Raise() | ast.Delete() | ast.Continue() | ast.Break() | ast.AugAssign():
            yield node, "pass"
        case (
            ast.Expr(value=ast.Call() | ast.Await()) | ast.Assign(targets=[ast.Attribute() | ast.Subscript()])
        ):
            yield node, "pass"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _text(node: ast.expr) -> str:
    return f"({ast.unparse(node)})"
