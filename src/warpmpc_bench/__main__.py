"""`python -m warpmpc_bench bench cartpole`: the commands of this package from a source tree.

An installed package adds them to `warpmpc` by its entry points; a tree that is only on the path has
none.
"""

import sys

from warpmpc.cli import main
from warpmpc_bench import bench_command, demo_command, solve_command

main.COMMANDS.update(demo=demo_command, solve=solve_command, bench=bench_command)
sys.exit(main.main())
