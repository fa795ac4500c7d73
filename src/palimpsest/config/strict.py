"""What every section of a configuration is."""

from __future__ import annotations

import typing
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError


class Strict(BaseModel):
    """Frozen; refuses unknown keys, numbers that aren't finite, and true or false for a number."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and info.field_name is not None:
            annotation = cls.model_fields[info.field_name].annotation
            kinds = {annotation, *typing.get_args(annotation)}
            if kinds & {int, float} and bool not in kinds:
                raise PydanticCustomError("truth", "must be a number, not true or false")
        return value
