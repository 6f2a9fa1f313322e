"""Docstrings of functions begin with a verb in its base form: "Return …", not "The …" or "Returns …"."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import container

ROOT = Path(container.__file__ or "").parent.parent

#: First words that are no verbs.
NO_VERB = re.compile(
    "A|About|After|All|Also|An|Another|Any|As|At|Be|Before|Both|By|Each|Every|Everything|For|From|How|If|In|It|Its|"
    "Nobody|None|Nothing|Of|On|One|Only|Or|Our|Out|Over|Seconds|So|Somebody|Something|Such|That|The|Their|There|These|"
    "They|This|Those|To|Until|Up|We|What|When|Where|Whether|Which|Who|Whoever|Whose|Why|With|You"
)
#: Endings of other forms of a verb, but for verbs whose base form ends like them.
OTHER_FORM = re.compile(
    "(?!(Bring|Ping|Embed|Feed|Need|Proceed|Seed|Shed|Speed|Succeed|Reseed|Exceed)$).*([^s]s|ing|ed)"
)


def first_word(docstring: str) -> str:
    return docstring.split()[0].rstrip(",;:.")


def is_verb(word: str) -> bool:
    """Return whether a word may be a verb in its base form; a noun that could be a verb is taken for one."""
    return not (NO_VERB.fullmatch(word) or OTHER_FORM.fullmatch(word)) and re.fullmatch("[A-Z][a-z]+", word) is not None


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {docstring.splitlines()[0]}"
        for package in ("estimators", "container")
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (docstring := ast.get_docstring(node))
        and not is_verb(first_word(docstring))
    ]
    assert wrong == []
