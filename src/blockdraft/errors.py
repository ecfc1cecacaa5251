"""Errors a user can cause. Each carries one line: what was given, what is allowed, what to do."""

from __future__ import annotations


class UserError(Exception):
    """Base of everything a user can cause; the command line prints it without a traceback."""


class ConfigError(UserError):
    """A setting, recipe field or request parameter is wrong."""


class CheckpointError(UserError):
    """A file of a model or drafter is missing, damaged or does not fit."""


class CapacityError(UserError):
    """A request needs more room (context, memory, disk) than there is."""


class UnsupportedError(UserError):
    """The combination asked for is known and deliberately not served."""


class NumericsError(UserError):
    """A model produced non-finite values for one request."""
