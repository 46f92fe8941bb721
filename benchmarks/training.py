"""Training steps of whole models: PyTorch's eager mode, `torch.compile`, and tconv's backend and written files.

    PYTHONPATH=src python3 benchmarks/training.py [--autocast] [--only NAME] [--budget SECONDS] [--fresh]

The models are those of benchmarks/fused/ and two examples, as constructed. A step is forward, backward from a fixed
gradient of the result, and SGD. Beside it stands the file's forward pass with gradients asked for, and without.

Under `--autocast` in bfloat16, which the files have kernels for then.

Writes benchmarks/results/training.json, or training-autocast.json: medians of milliseconds with a cold L2 cache, peaks
of memory in bytes, and how far gradients are from those of exact arithmetic, beside how far eager's are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fused import AS_FAR, file_of, loaded, models, write_all
from results import Results
from runs import measure_missing, milliseconds, parser
from torch import Tensor, nn

from tconv.compiler import backend
from tconv.evaluation.stopwatch import CudaClock
from tconv.tuning.trials import Distance

#: Small: after many steps a model still computes about the same.
_RATE = 1e-6


class Training:
    """A model that is trained on the same inputs, step by step.

    Args:
        called: what stands for the model, where it is called.
        autocast: its forward passes run under autocast in bfloat16.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Sequence[Tensor],
        called: Callable[..., Any] | None = None,
        autocast: bool = False,
    ) -> None:
        self.model, self._inputs, self._autocast = model, inputs, autocast
        # Not "or": a compiled module has no truth value.
        self._called = model if called is None else called
        self._optimizer = torch.optim.SGD(model.parameters(), _RATE)
        self._incoming: Tensor | None = None

    def forward(self) -> Tensor:
        """A result, with its graph if gradients are asked for."""
        with torch.autocast(self._inputs[0].device.type, torch.bfloat16, enabled=self._autocast):
            result: Tensor = self._called(*self._inputs)
        return result

    def backward(self) -> None:
        """A pass forward and one backward: parameters have gradients then."""
        result = self.forward()
        if self._incoming is None:
            generator = torch.Generator(result.device).manual_seed(1)
            self._incoming = torch.randn(result.shape, generator=generator, device=result.device).to(result.dtype)
        self._optimizer.zero_grad()
        result.backward(self._incoming)

    def step(self) -> None:
        """All of a step."""
        self.backward()
        self._optimizer.step()

    def gradients(self) -> list[Tensor]:
        """Those of the parameters, in their order."""
        self.backward()
        return [p.grad.clone() for p in self.model.parameters() if p.grad is not None]


def distance(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """The largest relative error of a gradient."""
    assert [t.shape for t in found] == [t.shape for t in exact]
    return max(Distance.between(f[None], e[None]).pooled for f, e in zip(found, exact, strict=True))


def measure(path: Path, autocast: bool, clock: CudaClock) -> Results:
    """Of one model."""
    torch.manual_seed(0)
    file = loaded(path)
    model, inputs = file.Model(*file.get_init_inputs()).cuda(), [t.cuda() for t in file.get_inputs()]
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.backends.cudnn.allow_tf32 = False
    exact = Training(model, inputs).gradients()
    torch.backends.cudnn.allow_tf32 = True

    def training(made: Callable[[nn.Module], Any] = lambda model: model, written: bool = False) -> Training:
        """From the same parameters and statistics each time."""
        torch._dynamo.reset()
        source = loaded(file_of(path.stem, types_of(autocast))) if written else file
        trained = (source.ModelNew if written else file.Model)(*file.get_init_inputs()).cuda()
        trained.load_state_dict(state)
        return Training(trained, inputs, made(trained), autocast)

    del model
    sides = {
        "pytorch": training,
        "compile": partial(training, torch.compile),
        "backend": partial(training, partial(torch.compile, backend=backend)),
        "file": partial(training, written=True),
    }
    found: Results = {"reasons": []}
    allowed = 0.0
    for name, make in sides.items():
        side = make()
        apart = distance(side.gradients(), exact)
        allowed = allowed or AS_FAR * apart + 1e-5
        if not apart <= allowed:
            found["reasons"].append(f"{name}'s gradients are {apart:.2g} from exact, allowed is {allowed:.2g}")
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        side.step()
        found[f"{name}_peak"] = torch.cuda.max_memory_allocated() - before
        found[f"{name}_step"] = milliseconds(side.step, clock)
        found[f"{name}_as_called"] = milliseconds(side.forward, clock)
        with torch.no_grad():
            found[f"{name}_inference"] = milliseconds(side.forward, clock)
        del side
    found["equal"] = not found["reasons"]
    print(path.stem, {key: value for key, value in found.items() if key.endswith("_step")}, flush=True)
    return found


def types_of(autocast: bool) -> tuple[str, ...]:
    """What files have kernels for beside their own type."""
    return ("bfloat16",) if autocast else ()


def main() -> int:
    made = parser(__doc__)
    made.add_argument("--autocast", action="store_true", help="under autocast in bfloat16")
    options = made.parse_args()
    if not torch.cuda.is_available():
        print("training.py measures on a GPU, and there is none here", file=sys.stderr)
        return 2
    types = types_of(options.autocast)
    write_all([name for name in models() if options.only in name and not file_of(name, types).exists()], types)
    of_all = partial(measure, autocast=options.autocast, clock=CudaClock())
    wanted = {name: partial(of_all, path) for name, path in models().items()}
    return measure_missing("training-autocast" if options.autocast else "training", wanted, options)


if __name__ == "__main__":
    sys.exit(main())
