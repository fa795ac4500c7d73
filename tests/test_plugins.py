"""Plugins by import path, by file and as objects: every mistake is one line that has its key."""

from __future__ import annotations

from pathlib import Path

import pytest

from palimpsest import plugins
from palimpsest.errors import ConfigError
from palimpsest.plugin_kinds import KINDS

FILES = {
    "plug_syntax.py": "def broken(:\n",
    "plug_raises.py": "import math\n\nVALUE = math.sqrt(-1)\n",
    "plug_needs.py": "import a_package_that_is_not_there\n",
    "plug_leaves.py": "import sys\n\nsys.exit(0)\n",
    "plug_lazy.py": "def __getattr__(name):\n    if name == 'Thing':\n        raise OSError('no weights')\n",
    "plug_fine.py": """
class Thing:
    def __init__(self, size=1): self.size = size
    def grade(self, problem, trajectory): return self.size + problem + trajectory

class Typed:
    def __init__(self, size: int, codec: object = None, sizes: tuple[int, ...] = ()):
        self.codec, self.sizes = codec, sizes
    def grade(self, problem, trajectory): return self.codec, self.sizes

def typed(problem, trajectory=None, *, share: float = 1.0, untyped=None): return share, untyped

class Called:
    def __call__(self, problem, trajectory, *, share: float = 1.0): return share
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
        ("plug_absent:Thing", "no module 'plug_absent' here or on PYTHONPATH"),
        ("plug_fin:Thing", r"did you mean plug_fine\?"),
        ("plug_fine.inner:Thing", "plug_fine"),
        ("plug_needs:Thing", "plug_needs imports 'a_package_that_is_not_there'"),
        ("plug_syntax:Thing", r"SyntaxError: .*plug_syntax.py, line 1"),
        ("plug_raises:VALUE", r"ValueError: .* \(plug_raises.py, line 3\)"),
        ("plug_leaves:VALUE", r"SystemExit: 0 \(plug_leaves.py, line 3\)"),
        ("plug_lazy:Thing", r"OSError: no weights \(plug_lazy.py, line 3\)"),
        ("plug_fine:Thin", r"plug_fine has no 'Thin'; did you mean Thing\?"),
        ("plug_fine.py:Thin", r"plug_fine.py has no 'Thin'; did you mean Thing\?"),
        ("plug_raises.py:VALUE", r"\(plug_raises.py, line 3\)"),
        ("folder/absent.py:Thing", "no such file"),
        ("plug_fine.py", "such as plug_fine.py:my_rule"),
        ("../plug_fine:Thing", "'../plug_fine' is not a module name"),
        (".plug_fine:Thing", "'.plug_fine' is not a module name"),
        ("..:Thing", "'..' is not a module name"),
        ("plug_fine:", "not of the form my_module:my_rule"),
        ("maen", r"did you mean mean\?"),
        ("object:mine", "pass it again from Python"),
    ],
)
def test_what_can_not_be_loaded_is_one_line_with_key_and_value(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as failure:
        plugins.load("rule", name)
    assert "\n" not in str(failure.value)
    assert (failure.value.key, failure.value.value) == ("credit.adv_estimator", name)


def test_four_names_mean_the_same_door() -> None:
    import plug_fine  # type: ignore[import-not-found]

    assert plugins.load("rule", "plug_fine:typed") is plug_fine.typed
    assert plugins.load("rule", "plug_fine.py:typed")(0) == (1.0, None)
    assert plugins.load("rule", "plug_fine.py:Thing") is plugins.load("rule", "plug_fine.py:Thing")
    with plugins.named_objects({"object:typed": plug_fine.typed}):
        assert plugins.load("rule", "object:typed") is plug_fine.typed
    assert plugins.load("rule", "state_mix").__name__ == "StateMix"


def test_a_thing_is_named_so_that_a_later_process_finds_it() -> None:
    for name in ("plug_fine:Thing", "plug_fine.py:Thing", "state_mix"):
        assert plugins.reference("rule", plugins.load("rule", name)) == name
    assert plugins.reference("rule", lambda group: [0.0]) == "object:<lambda>"


def test_every_shipped_thing_is_where_the_table_says() -> None:
    for kind, spec in KINDS.items():
        for name in spec.shipped:
            assert callable(plugins.load(kind, name)), name


def test_a_class_is_made_with_its_options_and_its_method_called() -> None:
    assert plugins.build("reward", "plug_fine:Thing", {"size": 3})(2, 1) == 6
    with pytest.raises(ConfigError, match=r"a method turn_advantages, or to be called, with") as failure:
        plugins.build("rule", "plug_fine:Thing")
    assert failure.value.key == "credit.adv_estimator"


@pytest.mark.parametrize(
    ("name", "options", "key", "value"),
    [
        ("Typed", {"size": 2.5}, "size", 2.5),
        ("Typed", {"size": 2, "sizes": ["a"]}, "sizes", ["a"]),
        ("Typed", {}, "size", None),
        ("Typed", {"size": 2, "codec": 1}, "codec", None),
        ("typed", {"share": "half"}, "share", "half"),
        ("called", {"share": True}, "share", True),
        ("called", {"price": 1}, "price", None),
    ],
)
def test_a_wrong_option_is_rejected_with_key_and_value(
    name: str, options: dict[str, object], key: str, value: object
) -> None:
    with pytest.raises(ConfigError) as failure:
        plugins.build("reward", f"plug_fine:{name}", options, codec="a codec")
    assert (failure.value.key, failure.value.value) == (f"reward.options.{key}", value)


def test_options_come_as_their_annotations_have_them() -> None:
    assert plugins.build("reward", "plug_fine:Typed", {"size": 1, "sizes": [1, 2]}, codec="c")(0, 0) == ("c", (1, 2))
    assert plugins.build("reward", "plug_fine:typed", {"untyped": "as it is"})(0, 0) == (1.0, "as it is")
