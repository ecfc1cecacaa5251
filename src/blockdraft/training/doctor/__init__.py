"""Finds what makes a drafter worse in service than it was in training: faults that nothing shows.

The output stays the target's own whatever is wrong with a drafter, so wrong taps, another template
or a difference between the two paths only cost speed, in silence (see `docs/guides/doctor.md`).
"""
