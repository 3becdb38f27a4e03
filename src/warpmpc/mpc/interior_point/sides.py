"""One-sided bounds with their multipliers: what a barrier and its elastic variables do to a row.

A row ``g`` has a slack ``s = g`` between its bounds.  Each bound is a `Side`: the distance ``gap``
of s from it has a barrier ``-mu log(gap)`` and a multiplier z with ``z gap = mu``.  A soft bound
has an elastic variable e in addition, so that ``gap + e`` is positive, with a price and a
multiplier w: ``e w = mu``.  Steps of z, e and w are eliminated by hand; what is left of a side is
``dz = r - S d(gap)`` (`Side.newton`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp

from warpmpc.mpc.interior_point.constants import BARRIER


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Elastic:
    """Elastic variables of a side.

    Attributes:
        e: Their values, zero where the side is hard.
        w: Their multipliers, one where the side is hard.
        linear: Linear penalty.
        quadratic: Quadratic penalty.
        soft: 1 where the side is soft at all, else 0: a number, because kernels read it.
    """

    e: jax.Array
    w: jax.Array
    linear: jax.Array
    quadratic: jax.Array
    soft: jax.Array

    @property
    def gives(self) -> jax.Array:
        """Where the side is soft."""
        return self.soft > 0

    @property
    def safe_e(self) -> jax.Array:
        """Values that one may divide by."""
        return jnp.where(self.gives, self.e, 1)

    def residual(self, z: jax.Array) -> jax.Array:
        """Stationarity of the elastic variables, for multipliers z of their bounds."""
        slope = self.linear + self.quadratic * self.e - z - self.w
        return jnp.where(self.gives, slope, 0)

    @property
    def _stiffness(self) -> jax.Array:
        return jnp.where(self.gives, self.w + self.e * self.quadratic, 1)

    def compliance(self) -> jax.Array:
        """Change of e per change of the bound's multiplier."""
        return jnp.where(self.gives, self.e / self._stiffness, 0)

    def pull(self, z: jax.Array, mu: jax.Array) -> jax.Array:
        """Change of e while the bound's multiplier stays."""
        wanted = mu - self.e * self.w - self.e * self.residual(z)
        return jnp.where(self.gives, wanted / self._stiffness, 0)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class SideStep:
    """Steps of a side: of its multiplier z, and of e and w where it has elastic variables."""

    gap: jax.Array
    z: jax.Array
    e: jax.Array | None = None
    w: jax.Array | None = None


Pair = tuple[jax.Array, jax.Array]  # a positive variable and its step


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Side:
    """One bound of consecutive rows.

    Attributes:
        z: Multipliers, zero where the bound is absent.
        has: 1 where it is there, else 0: a number, because kernels read it.
        bound: Bounds; zero where they are absent.
        elastic: Elastic variables, or None where all rows are hard.
        first: First of the rows.
        last: The row behind the last one.
        upper: Whether it is the upper bound.
    """

    z: jax.Array
    has: jax.Array
    bound: jax.Array
    elastic: Elastic | None
    first: int = field(metadata={"static": True})
    last: int = field(metadata={"static": True})
    upper: bool = field(metadata={"static": True})

    @property
    def there(self) -> jax.Array:
        """Where there is a bound."""
        return self.has > 0

    def of(self, rows: jax.Array) -> jax.Array:
        """The rows of this side."""
        return rows[:, self.first : self.last]

    def inward(self, rows: jax.Array) -> jax.Array:
        """A change of the rows as a change of the distance to the bound."""
        return -self.of(rows) if self.upper else self.of(rows)

    def gap(self, s: jax.Array) -> jax.Array:
        """Distance of s from the bound."""
        return self.bound - self.of(s) if self.upper else self.of(s) - self.bound

    def room(self, s: jax.Array) -> jax.Array:
        """What the barrier is of; one where the bound is absent."""
        room = self.gap(s)
        if self.elastic is not None:
            room = room + self.elastic.e
        return jnp.where(self.there, room, 1)

    def newton(self, s: jax.Array, mu: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(r, S) of dz = r - S d(gap)."""
        room, z = self.room(s), self.z
        wanted, size = mu - z * room, room
        if self.elastic is not None:
            wanted = wanted - z * self.elastic.pull(z, mu)
            size = size + z * self.elastic.compliance()
        return jnp.where(self.there, wanted / size, 0), jnp.where(self.there, z / size, 0)

    def step(self, s: jax.Array, ds: jax.Array, mu: jax.Array) -> SideStep:
        """Steps of the side for a step of s."""
        r, S = self.newton(s, mu)
        d_gap = self.inward(ds)
        dz = r - S * d_gap
        elastic = self.elastic
        if elastic is None:
            return SideStep(d_gap, dz)
        de = elastic.pull(self.z, mu) + elastic.compliance() * dz
        dw = elastic.quadratic * de - dz + elastic.residual(self.z)
        return SideStep(d_gap, dz, de, jnp.where(elastic.gives, dw, 0))

    def primal(self, s: jax.Array, step: SideStep) -> list[Pair]:
        """Positive variables of the primal step."""
        if self.elastic is None or step.e is None:
            return [(self.room(s), jnp.where(self.there, step.gap, 0))]
        move = jnp.where(self.there, step.gap + step.e, 0)
        return [(self.room(s), move), (self.elastic.safe_e, step.e)]

    def dual(self, step: SideStep) -> list[Pair]:
        """Positive variables of the dual step."""
        pairs = [(jnp.where(self.there, self.z, 1), step.z)]
        if self.elastic is not None and step.w is not None:
            pairs.append((self.elastic.w, step.w))
        return pairs

    def products(self, s: jax.Array) -> list[tuple[jax.Array, jax.Array]]:
        """Complementarity products, and where there are any."""
        pairs = [(self.z * self.room(s), self.there)]
        if self.elastic is not None:
            pairs.append((self.elastic.e * self.elastic.w, self.elastic.gives))
        return pairs

    def advanced(self, step: SideStep, alpha: jax.Array) -> Side:
        """The side with elastic variables after a primal step."""
        if self.elastic is None or step.e is None:
            return self
        return replace(self, elastic=replace(self.elastic, e=self.elastic.e + alpha * step.e))

    def cost(self, s: jax.Array, mu: jax.Array) -> list[jax.Array]:
        """Penalties and barrier, row by row; NaN beyond a bound."""
        cost = [-mu * jnp.log(self.room(s))]
        elastic = self.elastic
        if elastic is not None:
            price = elastic.linear * elastic.e + 0.5 * elastic.quadratic * elastic.e**2
            cost.append(jnp.where(elastic.gives, price - mu * jnp.log(elastic.safe_e), 0))
        return cost

    def slope(self, s: jax.Array, step: SideStep, mu: jax.Array) -> list[jax.Array]:
        """Directional derivative of the cost, row by row."""
        ((room, move), *_) = self.primal(s, step)
        slope = [-mu * move / room]
        elastic = self.elastic
        if elastic is not None and step.e is not None:
            price = elastic.linear + elastic.quadratic * elastic.e - mu / elastic.safe_e
            slope.append(jnp.where(elastic.gives, price * step.e, 0))
        return slope

    def with_multipliers(
        self, s: jax.Array, step: SideStep, alpha: jax.Array, mu: jax.Array
    ) -> Side:
        """The side with multipliers after a dual step; s and e are the new ones already."""
        z = _near(self.z + alpha * step.z, self.room(s), mu)
        side = replace(self, z=jnp.where(self.there, z, 0))
        elastic = self.elastic
        if elastic is None or step.w is None:
            return side
        w = _near(elastic.w + alpha * step.w, elastic.safe_e, mu)
        return replace(side, elastic=replace(elastic, w=jnp.where(elastic.gives, w, 1)))


def _near(multiplier: jax.Array, room: jax.Array, mu: jax.Array) -> jax.Array:
    """Multipliers not too far from the central path (WB, eq. 16)."""
    center, factor = mu / room, BARRIER.kappa_sigma
    return jnp.clip(multiplier, center / factor, factor * center)


def on_path(side: Side, s: jax.Array, mu: jax.Array) -> Side:
    """The side with multipliers at least those of the central path.

    Those of a soft bound stay below its price, so that its elastic variable has one, too.
    """
    z = jnp.where(side.there, jnp.maximum(side.z, mu / side.room(s)), 0)
    elastic = side.elastic
    if elastic is None:
        return replace(side, z=z)
    price = elastic.linear + elastic.quadratic * elastic.e
    z = jnp.where(elastic.gives, jnp.minimum(z, 0.5 * price), z)
    return replace(side, z=z, elastic=replace(elastic, w=jnp.where(elastic.gives, price - z, 1)))


def longest_step(pairs: list[Pair], tau: jax.Array) -> jax.Array:
    """Largest step in (0, 1] after which a share 1 - tau of all positive variables is left."""
    if not pairs:
        return jnp.ones_like(tau)
    v, dv = (jnp.concatenate(parts, axis=1) for parts in zip(*pairs, strict=True))
    limit = jnp.where(dv < 0, -tau * v / jnp.where(dv < 0, dv, -1), 1)
    return jnp.minimum(limit.min(axis=1, keepdims=True, initial=1), 1)
