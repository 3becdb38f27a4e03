"""From an MPC to a small network on a microcontroller: data, training, validation, export.

```python
task = wm.learn.Task(solver, plant, sampler, steps=100)
data = wm.learn.synthesize(task, folder="data")
policy = wm.learn.train(data, task=task)
print(wm.learn.evaluate(task, policy).table())
wm.learn.export(policy, "firmware")
```

Networks need the extra `learn` (flax, and optax to train); ONNX files need onnx, and `parity` uses
onnxruntime.
"""

from warpmpc.learn.controllers import Expert, Mixture, NetworkController
from warpmpc.learn.dagger import learn_policy
from warpmpc.learn.dataset import Dataset
from warpmpc.learn.errors import DataError
from warpmpc.learn.evaluation import Evaluation, evaluate
from warpmpc.learn.export.export import Exported, export
from warpmpc.learn.export.parity import Parity, parity
from warpmpc.learn.firmware.loop import FirmwareReport, evaluate_firmware, write_firmware
from warpmpc.learn.network import Network
from warpmpc.learn.policy import Policy
from warpmpc.learn.settings import BETAS, DataSettings, TrainSettings
from warpmpc.learn.synthesis import Executor, LocalExecutor, synthesize
from warpmpc.learn.task import Firmware, Noise, Task
from warpmpc.learn.tasks import TASKS, make_task
from warpmpc.learn.training import train

__all__ = [
    "BETAS",
    "TASKS",
    "DataError",
    "DataSettings",
    "Dataset",
    "Evaluation",
    "Executor",
    "Expert",
    "Exported",
    "Firmware",
    "FirmwareReport",
    "LocalExecutor",
    "Mixture",
    "Network",
    "NetworkController",
    "Noise",
    "Parity",
    "Policy",
    "Task",
    "TrainSettings",
    "evaluate",
    "evaluate_firmware",
    "export",
    "learn_policy",
    "make_task",
    "parity",
    "synthesize",
    "train",
    "write_firmware",
]
