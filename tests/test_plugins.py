"""`my_module:MyThing`: every mistake is one line that begins with the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from palimpsest import plugins
from palimpsest.errors import ConfigError

FILES = {
    "plug_syntax.py": "def broken(:\n",
    "plug_raises.py": "import math\n\nVALUE = math.sqrt(-1)\n",
    "plug_needs.py": "import a_package_that_is_not_there\n",
    "plug_fine.py": """
class Thing:
    def __init__(self, size=1): self.size = size
    def ask(self, x): return self.size + x
""",
}


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("plug_absent:Thing", "credit.rule: no module 'plug_absent' here or on PYTHONPATH"),
        ("plug_fine.inner:Thing", "credit.rule: .*plug_fine"),
        ("plug_needs:Thing", "credit.rule: plug_needs imports 'a_package_that_is_not_there', which is not installed"),
        ("plug_syntax:Thing", r"credit.rule: importing plug_syntax raised SyntaxError: .*plug_syntax.py, line 1"),
        ("plug_raises:VALUE", r"importing plug_raises raised ValueError: .* \(plug_raises.py, line 3\)"),
        ("plug_fine:Thin", r"credit.rule: plug_fine has no 'Thin'; did you mean Thing\?"),
        ("plug_fine:", "credit.rule: 'plug_fine:' is not of the form my_module:MyThing"),
    ],
)
def test_what_can_not_be_imported_is_told_in_one_line(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as failure:
        plugins.own(name, "credit.rule")
    assert "\n" not in str(failure.value)


def test_a_class_is_made_with_its_options_and_its_method_called() -> None:
    call = plugins.build("plug_fine:Thing", {"size": 3}, where="credit.rule", arguments=("x",), method="ask")
    assert call(2) == 5
    with pytest.raises(
        ConfigError, match=r"credit.rule: plug_fine:Thing needs a method tell, or to be called, with \(x\)"
    ):
        plugins.build("plug_fine:Thing", {}, where="credit.rule", arguments=("x",), method="tell")
