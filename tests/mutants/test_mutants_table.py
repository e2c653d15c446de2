"""What the mutation tester asks of what mutmut found."""

import ast
from collections.abc import Iterator

import pytest

from tests.mutants.__main__ import PACKAGES, PARTS, ROOT, lacking, module_of, read, table

LOGIC = (
    ast.If, ast.IfExp, ast.Compare, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.For, ast.While, ast.Try, ast.Match,
    ast.comprehension, ast.Constant,
)  # fmt: skip
"""What a mutant could change."""


def mutants(**dead: int) -> dict[str, str]:
    """A hundred of each part, of which so many died (`proto`, `admission`)."""
    modules = {"proto": "smcp_proto.names.x_check_name", "admission": "smcp_registry.admission.x_admit"}
    return {
        f"{modules[part]}__mutmut_{number}": "killed" if number < count else "survived"
        for part, count in dead.items()
        for number in range(100)
    }


def test_nine_of_ten_of_each_part_are_enough() -> None:
    assert lacking(mutants(proto=90, admission=90)) == []


@pytest.mark.parametrize(("proto", "admission", "part"), [(100, 89, PARTS[1]), (89, 100, PARTS[0])])
def test_one_part_does_not_make_up_for_another(proto: int, admission: int, part: str) -> None:
    assert lacking(mutants(proto=proto, admission=admission)) == [f"{part}: 89 of 100 mutants died, less than 90 %"]


def test_a_part_without_mutants_is_noticed() -> None:
    assert lacking(mutants(proto=100)) == ["smcp_registry.admission: 0 of 0 mutants died, less than 90 %"]


def test_a_name_that_only_begins_alike_is_of_no_part() -> None:
    found = lacking({"smcp_proto_other.x__mutmut_1": "killed", **mutants(admission=100)})
    assert found == ["smcp_proto: 0 of 0 mutants died, less than 90 %"]


def test_what_mutmut_printed_is_read_and_counted() -> None:
    printed = """
    smcp_proto.names.x_check_name__mutmut_1: killed
    smcp_proto.names.x_check_name__mutmut_2: survived
done in 3 s
    smcp_registry.admission.x_admit__mutmut_1: timeout
"""
    found = read(printed)
    assert found == {
        "smcp_proto.names.x_check_name__mutmut_1": "killed",
        "smcp_proto.names.x_check_name__mutmut_2": "survived",
        "smcp_registry.admission.x_admit__mutmut_1": "timeout",
    }
    assert {module_of(name) for name in found} == {"smcp_proto.names", "smcp_registry.admission"}
    lines = {line.split()[0]: line.split()[1:5] for line in table(found)[1:]}
    assert lines == {
        "smcp_proto.names": ["2", "1", "0", "1"],
        "smcp_registry.admission": ["1", "0", "1", "0"],
        "all": ["3", "1", "1", "1"],
    }


def decorated() -> Iterator[tuple[str, ast.FunctionDef]]:
    """The functions that mutmut leaves out for their decorators."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "smcp_registry" in package and path.name != "admission.py":
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef) and node.decorator_list:
                    names = {each.id for each in node.decorator_list if isinstance(each, ast.Name)}
                    if not names & {"staticmethod", "classmethod"}:
                        yield f"{path.name}: {node.name}", node


def test_what_has_no_mutants_for_its_decorator_only_calls_what_has_some() -> None:
    found = dict(decorated())
    assert {"dpe.py: level", "jsonrpc.py: _one_of_both"} <= set(found)
    for name, function in found.items():
        body = function.body[1:] if ast.get_docstring(function) else function.body
        assert not [node for each in body for node in ast.walk(each) if isinstance(node, LOGIC)], name
