"""Entries of a lane's matrix while it is eliminated, as statements; see `engines.onchip.lane_source`."""

from __future__ import annotations

from collections.abc import Callable, Collection

from warpmpc.engines.onchip.lanes import Node, Pair, pair


class LaneEntries:
    """Entries while the interior is eliminated; each is declared where it is first needed."""

    def __init__(self, start: Callable[[Pair], str | None], beyond: Collection[Node]):
        """Nothing is declared yet.

        Args:
            start: Text of an entry's value in K, None where it has none.
            beyond: Nodes of the next lane: between them K has nothing of this lane.
        """
        self.lines: list[str] = []
        self._start, self._beyond = start, set(beyond)
        self._declared: dict[Pair, str] = {}

    @staticmethod
    def label(node: Node) -> str:
        """Part of a name."""
        return f"{node.stage}{'g' if node.is_row else 'z'}{node.index}"

    def _name(self, key: Pair) -> str:
        return f"k{self.label(key[0])}_{self.label(key[1])}"

    def need(self, a: Node, b: Node) -> str:
        """Declares an entry with its value in K."""
        key = pair(a, b)
        if key not in self._declared:
            self._declared[key] = self._name(key)
            self.lines.append(f"SCALAR {self._name(key)} = {self._start(key) or '(SCALAR)0'};")
        return self._declared[key]

    def subtract(self, a: Node, b: Node, product: str) -> None:
        """Takes a product from an entry; what belongs to the next lane begins with nothing."""
        key = pair(a, b)
        beyond = self._beyond.issuperset(key)
        start = None if beyond else self._start(key)
        if key in self._declared or start is not None:
            self.lines.append(f"{self.need(a, b)} -= {product};")
        else:
            self._declared[key] = self._name(key)
            self.lines.append(f"SCALAR {self._name(key)} = -({product});")

    def value(self, a: Node, b: Node, *, given: bool = True) -> str:
        """Text of an entry between separators; `given`: it has a value in K, too."""
        key = pair(a, b)
        if key in self._declared:
            return self._declared[key]
        return (self._start(key) if given else None) or "(SCALAR)0"
