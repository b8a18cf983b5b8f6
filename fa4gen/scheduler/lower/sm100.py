"""Blackwell: tcgen05, tensor memory."""


class Sm100: ...
