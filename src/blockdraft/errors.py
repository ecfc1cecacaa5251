"""Errors a user can cause. Each carries one line: what was given, what is allowed, what to do."""

from __future__ import annotations


class UserError(Exception):
    """Base of everything a user can cause; the command line prints it without a traceback."""


class ConfigError(UserError):
    """What was asked for is wrong: an option, a recipe, a request, or a path where nothing is."""


class CheckpointError(UserError):
    """What is read (a model, a drafter, answers, prompts, results) is damaged or does not fit."""


class CapacityError(UserError):
    """A request needs more room (context, memory, disk) than there is."""


class UnsupportedError(UserError):
    """The combination asked for is known and deliberately not served."""


class NumericsError(UserError):
    """A model produced non-finite values for one request."""
