"""Recipes: TOML files read into frozen dataclasses. Nothing unknown, nothing of the wrong kind."""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from blockdraft.errors import ConfigError

Recipe = TypeVar("Recipe")

_KINDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def load_recipe(path: Path | str, kind: type[Recipe], overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe.

    Args:
        path: a TOML file.
        kind: the dataclass it is read into; its fields may be dataclasses, tuples and dicts of
            them, texts, numbers, booleans, `Path`, `Literal`, and any of these or None.
        overrides: `a.b=value` each, set over the file; `value` is a TOML value, and a plain word
            needs no quotes. Items of lists go by number (`sources.0.file=..`).
    Raises: ConfigError naming the key: one that does not exist (with the nearest that does), one
        that is missing, or a value of the wrong kind.
    """
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"recipe {path} does not exist; give the path of a TOML file") from error
    except OSError as error:
        raise ConfigError(f"recipe {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"recipe {path} is no TOML: {error}") from error
    except RecursionError:
        raise ConfigError(f"recipe {path} is no TOML: it is nested too deep") from None
    for override in overrides:
        _apply(table, override)
    return build_recipe(table, kind)


def build_recipe(table: Mapping[str, Any], kind: type[Recipe], where: str = "") -> Recipe:
    """A dataclass of a table as TOML gives it; `where` is the dotted key of the table itself.

    Raises: as `load_recipe`.
    """
    assert dataclasses.is_dataclass(kind), kind
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    for key in table:
        if key not in fields:
            raise ConfigError(_unknown(_join(where, key), key, list(fields)))
    values = {k: _convert(value, hints[k], _join(where, k)) for k, value in table.items()}
    for name, field in fields.items():
        has_default = (field.default, field.default_factory) != (dataclasses.MISSING,) * 2
        if name not in values and not has_default:
            raise ConfigError(f"the recipe has no {_join(where, name)}; it must be given")
    try:
        return typing.cast(Recipe, kind(**values))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}" if where else str(error)) from error


def as_plain(recipe: Any) -> Any:
    """The recipe as JSON takes it, every default spelled out."""
    if dataclasses.is_dataclass(recipe) and not isinstance(recipe, type):
        return {f.name: as_plain(getattr(recipe, f.name)) for f in dataclasses.fields(recipe)}
    if isinstance(recipe, Mapping):
        return {str(key): as_plain(value) for key, value in recipe.items()}
    if isinstance(recipe, tuple | list):
        return [as_plain(value) for value in recipe]
    return str(recipe) if isinstance(recipe, Path) else recipe


def _apply(table: dict[str, Any], override: str) -> None:
    """Set one `a.b=value` in the tables of a recipe."""
    path, sign, text = override.partition("=")
    keys = path.strip().split(".")
    if not sign or not all(keys):
        raise ConfigError(f"--set {override!r} is not of the form key=value or table.key=value")
    place: Any = table
    for depth, key in enumerate(keys):
        is_last = depth == len(keys) - 1
        if isinstance(place, list):
            if not key.isdecimal() or int(key) >= len(place):
                raise ConfigError(
                    f"--set {override!r}: {'.'.join(keys[:depth])} is a list of {len(place)}; "
                    f"{key} is none of its numbers (from 0)"
                )
            index: Any = int(key)
        elif isinstance(place, dict):
            index = key
            if not is_last:
                place.setdefault(key, {})
        else:
            raise ConfigError(f"--set {override!r}: {'.'.join(keys[:depth])} is no table")
        if is_last:
            place[index] = _toml_value(text.strip(), override)
        else:
            place = place[index]


def _toml_value(text: str, override: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError as error:
        if not text or any(sign in text for sign in "\"'[]{}\n#"):
            raise ConfigError(
                f"--set {override!r}: {text!r} is no TOML value; texts go in quotes, lists in []"
            ) from error
        return text
    return parsed["value"] if set(parsed) == {"value"} else text


def _convert(value: Any, hint: Any, where: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _convert_union(value, args, where)
    if origin is Literal:
        if value not in args or isinstance(value, bool):
            raise ConfigError(f"{where} is {value!r}; choose {_listed(args)}")
        return value
    if dataclasses.is_dataclass(hint):
        return build_recipe(_need(value, dict, "a table", where), typing.cast(type, hint), where)
    if origin in (tuple, list, Sequence):
        return _convert_list(_need(value, list, "a list", where), args, where)
    if origin in (dict, Mapping):
        table = _need(value, dict, "a table", where)
        return {key: _convert(item, args[1], _join(where, key)) for key, item in table.items()}
    if hint is Path:
        return Path(_need(value, str, "a path (text)", where))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, bool) and hint is not bool:
        raise ConfigError(f"{where} is {value!r}; it must be {_KINDS[hint]}")
    return _need(value, hint, _KINDS[hint], where)


def _convert_union(value: Any, args: tuple[Any, ...], where: str) -> Any:
    """The first kind that fits; where none does, the first one's message."""
    kinds = [kind for kind in args if kind is not type(None)]
    errors = []
    for kind in kinds:
        try:
            return _convert(value, kind, where)
        except ConfigError as error:
            errors.append(error)
    raise errors[0]


def _convert_list(values: list[Any], args: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    is_open = len(args) == 1 or (len(args) == 2 and args[1] is Ellipsis)
    if not is_open and len(values) != len(args):
        raise ConfigError(f"{where} has {len(values)} items; it must have {len(args)}")
    kinds = [args[0]] * len(values) if is_open else list(args)
    return tuple(
        _convert(value, kind, _join(where, str(i)))
        for i, (value, kind) in enumerate(zip(values, kinds, strict=True))
    )


def _need(value: Any, kind: type, what: str, where: str) -> Any:
    if not isinstance(value, kind):
        raise ConfigError(f"{where} is {value!r}; it must be {what}")
    return value


def _unknown(where: str, key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    return f"the recipe's key {where} does not exist; {hint}"


def _listed(values: tuple[Any, ...]) -> str:
    return " or ".join(map(str, values)) if len(values) < 3 else ", ".join(map(str, values))


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
