"""The judge at its strict level, at which each thing is looked at by itself."""

from __future__ import annotations

from functools import partial

from tconv.evaluation.files import judge as judging

judge = partial(judging.judge, level="strict")
