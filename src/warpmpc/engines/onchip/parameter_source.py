"""Native text of the parameters that the stages of a problem read: from memory, or from a copy.

Reads: names of the inputs at a point, a `LaneMemory`.  Produces: statements for
`engines.onchip.solve_template`.  Input i is ``in{i}``; the point itself and multipliers are rows of lanes.
"""

from __future__ import annotations

from collections.abc import Sequence

from warpmpc.engines.onchip.memory import LaneMemory

OF_LANES = ("z", "y")


class OnchipInputs:
    """The inputs of one problem."""

    def __init__(self, names: Sequence[str], memory: LaneMemory):
        """Keeps both.

        Args:
            names: Of all inputs, in order.
            memory: Where copies of parameters lie, if there are any.
        """
        self._names, self._m = names, memory
        self._parameters = [(i, name) for i, name in enumerate(names) if name not in OF_LANES]

    def pointers(self) -> str:
        """Declares ``p_of``, ..., the arrays of the caller, and where stages read them."""
        lines = []
        for i, name in self._parameters:
            own = f"({name}_in.shape[0] > 1 ? problem : 0) * {name}_in.shape[1]"
            lines.append(f"const SCALAR* __restrict__ {name}_of = {name}_in.data + {own};")
            at = self._m.held_at.get(name)
            where = f"{name}_of" if at is None else f"PARAMETERS + {at}"
            lines.append(f"const SCALAR* in{i} = {where};")
        return "\n".join(lines)

    def asked_later(self) -> str:
        """Asks for the arrays of a problem that follows, if they are its own."""
        lines = []
        for _, name in self._parameters:
            count = f"{name}_in.shape[1]"
            asked = f"ASK_LATER({name}_of + FOLLOWING * {count}, {count})"
            lines.append(f"if ({name}_in.shape[0] > 1) {{ {asked} }}")
        return "\n".join(lines)

    def reads(self) -> dict[str, str]:
        """Text of one number of each input, for `fused_module.inlined`."""
        texts = {}
        for i, name in enumerate(self._names):
            if name in OF_LANES:
                texts[f"in{i}"] = "*(base + {place})"
            elif name in self._m.held:
                texts[f"in{i}"] = f"*(in{i} + {{place}})"
            else:
                texts[f"in{i}"] = f"READ(in{i}, {{place}})"
        return texts
