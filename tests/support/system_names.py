"""Names of systems that tests run over."""

from warpmpc import systems

# Kernels of the others take minutes to compile; they have tests of their own.
SMALL = sorted(name for name in systems.SYSTEMS if not systems.describe(name).is_large)
