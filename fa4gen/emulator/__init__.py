"""A functional emulator of the PTX that the CuTe DSL's compiler makes: values, races, hangs."""

from fa4gen.emulator.api import Emulator

__all__ = ["Emulator"]
