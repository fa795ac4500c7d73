"""Options of a class that a recipe names are checked by the annotations of its constructor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from palimpsest.errors import ConfigError
from palimpsest.plugin_options import check_options, options_of, untyped

if TYPE_CHECKING:
    from decimal import Decimal


@dataclass(frozen=True, slots=True)
class Typed:
    size: int
    share: float = 0.5
    name: str = "x"
    on: bool = False
    mode: Literal["a", "b"] | None = None
    sizes: tuple[int, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)
    folder: Path | None = None
    words: Sequence[str] | None = None
    made: int = field(init=False, default=7)


class Plain:
    def __init__(self, size: int = 1, anything=None, **more: Any) -> None:  # type: ignore[no-untyped-def]
        self.size, self.anything, self.more = size, anything, more


class Hidden:
    def __init__(self, price: Decimal) -> None:
        self.price = price


def made_of(cls: Any, options: dict[str, Any]) -> Any:
    return cls(**check_options(cls, options, "o", cls.__name__))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 2.5}, "o.size=2.5: must be a whole number"),
        ({"size": 2.0}, "o.size=2.0: must be a whole number"),
        ({"size": "2"}, "o.size='2': must be a whole number"),
        ({"size": True}, "o.size=True: must be a whole number"),
        ({"size": None}, "o.size=None: must be a whole number"),
        ({"share": "0.5"}, "o.share='0.5': must be a number"),
        ({"share": False}, "o.share=False: must be a number"),
        ({"share": float("nan")}, "o.share=nan: must be a number"),
        ({"name": 3}, "o.name=3: must be text"),
        ({"on": 1}, "o.on=1: must be true or false"),
        ({"on": "true"}, "o.on='true': must be true or false"),
        ({"mode": "c"}, "o.mode='c': choose one of a, b, null"),
        ({"sizes": [1, "2"]}, "o.sizes=[1, '2']: must be a list, each a whole number"),
        ({"sizes": 1}, "o.sizes=1: must be a list, each a whole number"),
        ({"weights": {"a": "b"}}, "o.weights={'a': 'b'}: must be a mapping, each value a number"),
        ({"words": "abc"}, "o.words='abc': must be a list, each text or null"),
        ({"made": 1}, "o.made is unknown to Typed; did you mean mode?; known: size, share, name"),
        ({"sise": 1, "color": 2}, "o.sise is unknown to Typed; did you mean size?; also unknown: color; known"),
    ],
)
def test_a_value_of_another_type_is_refused_with_key_value_and_type(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_options(Typed, {"size": 1, **options}, "o", "Typed")
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_what_yaml_can_say_of_a_type_is_taken() -> None:
    made = made_of(
        Typed,
        {"size": 2, "share": 1, "mode": None, "sizes": [1, 2], "weights": {"a": 1}, "folder": "here", "words": ["w"]},
    )
    assert made == Typed(2, 1.0, sizes=(1, 2), weights={"a": 1.0}, folder=Path("here"), words=["w"])


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^o\.size is missing: typed has no default for it$"):
        check_options(Typed, {}, "o", "typed")


def test_a_constructor_of_the_users_own_is_read_as_well() -> None:
    made = made_of(Plain, {"size": 3, "anything": [1], "further": "x"})
    assert (made.size, made.anything, made.more) == (3, [1], {"further": "x"})
    with pytest.raises(ConfigError, match=r"o\.size='3': must be a whole number"):
        made_of(Plain, {"size": "3"})
    assert untyped(Plain) == ["anything"]


def test_an_annotation_for_type_checkers_alone_is_left_unchecked_and_named() -> None:
    assert made_of(Hidden, {"price": "3"}).price == "3"
    assert untyped(Hidden) == ["price"]
    assert list(options_of(Hidden)) == ["price"]


def test_options_are_worked_out_once_a_class_and_nobody_changes_them() -> None:
    assert options_of(Typed) is options_of(Typed)
    with pytest.raises(TypeError):
        options_of(Typed)["size"] = options_of(Typed)["share"]  # type: ignore[index]
