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
    "plug_leaves.py": "import sys\n\nsys.exit(0)\n",
    "plug_lazy.py": "def __getattr__(name):\n    if name == 'Thing':\n        raise OSError('no weights')\n",
    "plug_fine.py": """
class Thing:
    def __init__(self, size=1): self.size = size
    def ask(self, x): return self.size + x

class Typed:
    def __init__(self, size: int, codec: object = None, sizes: tuple[int, ...] = ()): self.sizes = sizes
    def ask(self, x): return self.sizes

def typed(x, *, share: float = 1.0, untyped=None): return share, untyped

class Called:
    def __call__(self, x, *, share: float = 1.0): return share
called = Called()
""",
}


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("plug_absent:Thing", "credit.rule: no module 'plug_absent' here or on PYTHONPATH"),
        ("plug_fin:Thing", r"no module 'plug_fin' here or on PYTHONPATH; did you mean plug_fine\?"),
        ("plug_fine.inner:Thing", "credit.rule: .*plug_fine"),
        ("plug_needs:Thing", "credit.rule: plug_needs imports 'a_package_that_is_not_there', which is not installed"),
        ("plug_syntax:Thing", r"credit.rule: importing plug_syntax raised SyntaxError: .*plug_syntax.py, line 1"),
        ("plug_raises:VALUE", r"importing plug_raises raised ValueError: .* \(plug_raises.py, line 3\)"),
        ("plug_leaves:VALUE", r"importing plug_leaves raised SystemExit: 0 \(plug_leaves.py, line 3\)"),
        ("plug_lazy:Thing", r"plug_lazy:Thing raised OSError: no weights \(plug_lazy.py, line 3\)"),
        ("plug_fine:Thin", r"credit.rule: plug_fine has no 'Thin'; did you mean Thing\?"),
        ("../plug_fine:Thing", "credit.rule: '../plug_fine' is no module's name; give one as my_module:MyThing"),
        (".plug_fine:Thing", "credit.rule: '.plug_fine' is no module's name"),
        ("..:Thing", "credit.rule: '..' is no module's name"),
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


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Typed", {"size": 2.5}, "thing.options.size=2.5: must be a whole number"),
        ("Typed", {"size": 2, "sizes": ["a"]}, r"thing.options.sizes=\['a'\]: must be a list, each a whole number"),
        ("typed", {"share": "half"}, "thing.options.share='half': must be a number"),
        ("called", {"share": True}, "thing.options.share=True: must be a number"),
    ],
)
def test_an_option_of_another_type_is_refused_with_key_value_and_type(
    name: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        plugins.build(
            f"plug_fine:{name}",
            options,
            where="thing",
            arguments=("x",),
            method="ask",
            given={"codec": "a codec"},
            options_key="thing.options",
        )


def test_options_come_as_their_annotations_have_them() -> None:
    made = plugins.build("plug_fine:Typed", {"size": 1, "sizes": [1, 2]}, where="t", arguments=("x",), method="ask")
    assert made(0) == (1, 2)
    assert plugins.build("plug_fine:typed", {"untyped": "as it is"}, where="t", arguments=("x",))(0) == (
        1.0,
        "as it is",
    )
