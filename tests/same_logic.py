"""Check that a rewrite changed only docstrings, comments, messages and names of local variables.

    python tests/same_logic.py main                     # all files that differ from commit main
    python tests/same_logic.py main wdjax/vector.py     # these files

Two files have the same logic if their syntax trees are equal after these steps: docstrings and
names of tests are removed, strings of two words or more become one placeholder, local names are
numbered in order of appearance, and an assigned lambda becomes a function. The values that a
formatted string shows must stay, in any order. Arguments of public functions keep their names.
Exit status 1 if a file differs.
"""

import ast
import copy
import difflib
import re
import subprocess
import sys
from pathlib import Path

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SCOPES = (*FUNCTIONS, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
TWO_WORDS = re.compile(r"[A-Za-z']{2,}\S*\s+\W*[A-Za-z']{2,}")


class Plain(ast.NodeTransformer):
    """Remove text that does not affect the program."""

    def visit(self, node):
        node = super().visit(node)
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if isinstance(body, list):
                texts = [
                    n for n in body if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)
                ]
                setattr(
                    node,
                    field,
                    [n for n in body if n not in texts or not isinstance(n.value.value, str)],
                )
        return node

    def visit_Constant(self, node):
        is_text = isinstance(node.value, str) and TWO_WORDS.search(node.value)
        return ast.Constant("a message") if is_text else node

    def visit_JoinedStr(self, node):
        values = [
            self.visit(part.value) for part in node.values if isinstance(part, ast.FormattedValue)
        ]
        return ast.Call(ast.Name("f-string", ast.Load()), values, [])

    def visit_Assign(self, node):
        self.generic_visit(node)
        if not (isinstance(node.value, ast.Lambda) and isinstance(node.targets[0], ast.Name)):
            return node
        function = ast.FunctionDef(
            node.targets[0].id, node.value.args, [ast.Return(node.value.body)], []
        )
        return self.visit(function)

    def visit_FunctionDef(self, node):
        self.generic_visit(node)
        node.returns, node.type_comment, node.type_params = None, None, []
        node.name = "test" if node.name.startswith("test_") else node.name
        return node


class Numbered(ast.NodeTransformer):
    """Number the local names of every function, in order of appearance."""

    def __init__(self):
        self.names = [{}]
        self.depth = 0

    def local(self, name):
        return next((scope[name] for scope in reversed(self.names) if name in scope), name)

    def bind(self, name):
        number = sum(map(len, self.names))
        self.names[-1].setdefault(name, f"local{number}")

    def scope(self, node):
        is_function = isinstance(node, FUNCTIONS)
        if is_function and len(self.names) > 1:
            node.name = self.local(node.name)
        self.names.append({})
        is_public = (
            is_function
            and len(self.names) == 2
            and not (node.name[0] == "_" and node.name[-2:] != "__")
        )
        fixed = {
            name
            for n in ast.walk(node)
            if isinstance(n, (ast.Global, ast.Nonlocal))
            for name in n.names
        }
        if hasattr(node, "args"):
            arguments = [n for n in ast.walk(node.args) if isinstance(n, ast.arg)]
            fixed |= {argument.arg for argument in arguments} if is_public else set()
            for argument in [] if is_public else arguments:
                self.bind(argument.arg)
        for name in bound_names(node):
            if name not in fixed:
                self.bind(name)
        node = self.generic_visit(node)
        self.names.pop()
        return node

    def visit(self, node):
        return self.scope(node) if isinstance(node, SCOPES) else super().visit(node)

    def visit_arg(self, node):
        node.arg = self.local(node.arg)
        return self.generic_visit(node)

    def visit_Name(self, node):
        node.id = self.local(node.id)
        return node

    def visit_Call(self, node):
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "f-string":
            unique = {ast.dump(value): value for value in node.args}
            node.args = [unique[key] for key in sorted(unique)]
        return node

    def visit_ExceptHandler(self, node):
        node.name = self.local(node.name) if node.name else None
        return self.generic_visit(node)


def bound_names(scope):
    """Yield the names that a function binds, but not the names in nested functions."""
    pending = list(ast.iter_child_nodes(scope))
    while pending:
        node = pending.pop(0)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, FUNCTIONS) or (isinstance(node, ast.ExceptHandler) and node.name):
            yield node.name
        if not isinstance(node, SCOPES):
            pending[:0] = ast.iter_child_nodes(node)


def logic(source):
    """Return the lines of a file's syntax tree without its text."""
    tree = Numbered().visit(Plain().visit(copy.deepcopy(ast.parse(source))))
    return ast.unparse(ast.fix_missing_locations(tree)).splitlines()


def git(*arguments):
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)


def main(base, *files):
    files_to_compare = (
        files or git("diff", "--name-only", "--diff-filter=M", base, "--", "*.py").stdout.split()
    )
    different = 0
    for name in files_to_compare:
        old = git("show", f"{base}:{name}").stdout
        delta = list(
            difflib.unified_diff(
                logic(old), logic(Path(name).read_text(encoding="utf8")), name, name, n=1
            )
        )
        different += bool(delta)
        print("\n".join(delta) if delta else f"{name}: same logic")
    print(f"{different} of {len(files_to_compare)} files have another logic than {base}")
    return different > 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
