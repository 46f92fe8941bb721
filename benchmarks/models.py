"""Whole models as users run them, with random weights, in batches of one: eager, in a CUDA graph, compiled.

    PYTHONPATH=src python3 benchmarks/models.py [--only TEXT] [--ways eager,graph,compiled] [--budget SECONDS] [--fresh]

Needs transformers and torchvision. Each model is PyTorch's, and the same after `tconv.optimize`, by turns; what tconv
leaves to PyTorch's operator counts as it is. Writes benchmarks/results/models.json: milliseconds from a call on an idle
GPU to its end, of which the host's are those until the call returns. A run goes on where an earlier one stopped.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from results import Results, environment, load, save
from runs import parser
from small import in_a_graph
from torch import Tensor, nn

import tconv
from tconv.compiler import backend

_NAME = "models"
_WAYS = ("eager", "graph", "compiled")
_WARM, _ROUNDS = 4, 10
#: The largest difference beside the largest result that two runs in TF32 may have.
_ALLOWED = 2e-2
#: A model, and an input.
Made = tuple[nn.Module, tuple[Tensor, ...]]
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def _encodec() -> Made:
    from transformers import EncodecConfig, EncodecModel

    model = EncodecModel(EncodecConfig())
    return model.decoder, (torch.randn(1, model.config.hidden_size, 750),)


def _dac() -> Made:
    from transformers import DacConfig, DacModel

    model = DacModel(DacConfig())
    return model.decoder, (torch.randn(1, model.config.hidden_size, 430),)


def _mimi() -> Made:
    from transformers import MimiConfig, MimiModel

    model = MimiModel(MimiConfig())
    return nn.Sequential(model.upsample, model.decoder), (torch.randn(1, model.config.hidden_size, 125),)


def _speecht5() -> Made:
    from transformers import SpeechT5HifiGan, SpeechT5HifiGanConfig

    return SpeechT5HifiGan(SpeechT5HifiGanConfig()), (torch.randn(1, 400, 80),)


def _univnet() -> Made:
    from transformers import UnivNetConfig, UnivNetModel

    model = UnivNetModel(UnivNetConfig())
    config = model.config
    return model, (torch.randn(1, 400, config.num_mel_bins), torch.randn(1, 400, config.model_in_channels))


def _vits() -> Made:
    from transformers import VitsConfig, VitsModel

    model = VitsModel(VitsConfig())
    return model.decoder, (torch.randn(1, model.config.flow_size, 400),)


def _dpt() -> Made:
    from transformers import DPTConfig, DPTForDepthEstimation

    return DPTForDepthEstimation(DPTConfig()), (torch.randn(1, 3, 384, 384),)


def _depth_anything() -> Made:
    from transformers import DepthAnythingConfig, DepthAnythingForDepthEstimation

    return DepthAnythingForDepthEstimation(DepthAnythingConfig()), (torch.randn(1, 3, 518, 518),)


class _SamMasks(nn.Module):
    """SAM's mask decoder for one prompt, with what does not change from prompt to prompt."""

    def __init__(self) -> None:
        from transformers import SamConfig, SamModel

        super().__init__()
        model = SamModel(SamConfig())
        self.decoder = model.mask_decoder
        self.register_buffer("positions", model.get_image_wide_positional_embeddings())
        self.register_buffer("points", torch.randn(1, 1, 2, 256))
        self.register_buffer("dense", torch.randn(1, 256, 64, 64))

    def forward(self, image: Tensor) -> Any:
        return self.decoder(image, self.positions, self.points, self.dense, True)


def _sam() -> Made:
    return _SamMasks(), (torch.randn(1, 256, 64, 64),)


def _vitpose() -> Made:
    from transformers import VitPoseBackboneConfig, VitPoseConfig, VitPoseForPoseEstimation

    config = VitPoseConfig(backbone_config=VitPoseBackboneConfig(), use_simple_decoder=False)
    return VitPoseForPoseEstimation(config), (torch.randn(1, 3, 256, 192),)


def _mask_head() -> Made:
    from torchvision.models.detection import maskrcnn_resnet50_fpn

    heads = maskrcnn_resnet50_fpn(weights=None, weights_backbone=None).roi_heads
    return nn.Sequential(heads.mask_head, heads.mask_predictor), (torch.randn(100, 256, 14, 14),)


#: By name, what makes them.
MODELS: dict[str, Callable[[], Made]] = {
    "EnCodec, decoder, 10 s": _encodec,
    "DAC, decoder, 5 s": _dac,
    "Mimi, decoder, 10 s": _mimi,
    "SpeechT5 HiFi-GAN, 6.4 s": _speecht5,
    "UnivNet, 4 s": _univnet,
    "VITS, decoder, 6.4 s": _vits,
    "DPT, 384²": _dpt,
    "Depth Anything, 518²": _depth_anything,
    "SAM, mask decoder": _sam,
    "ViTPose, 256×192": _vitpose,
    "Mask R-CNN, mask head, 100 boxes": _mask_head,
}


def tensors_of(output: Any) -> list[Tensor]:
    """All tensors of floating point in what a model returns."""
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() else []
    if isinstance(output, dict):
        output = list(output.values())
    return [t for each in output for t in tensors_of(each)] if isinstance(output, list | tuple) else []


def difference(ours: Any, theirs: Any) -> float:
    """The largest, beside the largest result of the same tensor."""
    pairs = zip(tensors_of(ours), tensors_of(theirs), strict=True)
    return max(float((a - b).abs().max() / b.abs().max().clamp_min(1e-30)) for a, b in pairs)


def calls_of(way: str, model: nn.Module, inputs: tuple[Tensor, ...], ours: bool) -> Callable[[], Any]:
    if way == "graph":
        return in_a_graph(lambda: model(*inputs))
    if way == "compiled":
        model = torch.compile(model, backend=backend if ours else "inductor")  # type: ignore[assignment]
    return lambda: model(*inputs)


def timed(calls: dict[str, Callable[[], Any]]) -> Results:
    """Medians of calls by turns, each on an idle GPU, with the shortest and the longest, and the host's medians."""
    for call in calls.values():
        for _ in range(_WARM):
            call()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            call()
            returned = time.perf_counter()
            torch.cuda.synchronize()
            times[name].append(((time.perf_counter() - start) * 1e3, (returned - start) * 1e3))
    return {
        name: {
            "ms": round(statistics.median(whole for whole, _ in of_it), 4),
            "from_to_ms": [round(end(whole for whole, _ in of_it), 4) for end in (min, max)],
            "host_ms": round(statistics.median(host for _, host in of_it), 4),
        }
        for name, of_it in times.items()
    }


@torch.no_grad()
def measure(make: Callable[[], Made], ways: list[str]) -> Results:
    torch.manual_seed(0)
    model, inputs = make()
    model, inputs = model.cuda().eval(), tuple(each.cuda() for each in inputs)
    ours = tconv.optimize(copy.deepcopy(model))
    layers = sum(isinstance(each, _TRANSPOSED) for each in model.modules())
    found: Results = {"layers": layers, "difference": difference(ours(*inputs), model(*inputs)), "ways": {}}
    found["equal"] = found["difference"] <= _ALLOWED
    for way in ways:
        try:
            theirs = calls_of(way, model, inputs, False)
        except RuntimeError as error:  # some models wait for the GPU, which no graph takes
            found["ways"][way] = {"why_not": str(error).partition("\n")[0]}
            torch.cuda.synchronize()
            continue
        found["ways"][way] = timed({"pytorch": theirs, "tconv": calls_of(way, ours, inputs, True)})
        torch._dynamo.reset()
    return found


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--ways", default=",".join(_WAYS), help="of %(default)s, with commas between")
    options = arguments.parse_args()
    if not torch.cuda.is_available():
        print("this measures on a GPU, and there is none here", file=sys.stderr)
        return 2
    kept, here = None if options.fresh else load(_NAME), environment()
    if kept and kept["environment"] != here:
        print("the stored results are of another machine or version: start anew with --fresh", file=sys.stderr)
        return 2
    results: Results = kept or {"environment": here, "models": {}}
    started = time.monotonic()
    for name, make in MODELS.items():
        known = results["models"].get(name, {"ways": {}})
        missing = [way for way in options.ways.split(",") if way not in known["ways"]]
        if options.only not in name or not missing or time.monotonic() - started > options.budget:
            continue
        found = measure(make, missing)
        results["models"][name] = found | {"ways": known["ways"] | found["ways"]}
        save(_NAME, results)
        print(
            name,
            f"difference {found['difference']:.1e}",
            *(
                f"{way} {sides['pytorch']['ms']:.3f} -> {sides['tconv']['ms']:.3f}"
                for way, sides in found["ways"].items()
                if "why_not" not in sides
            ),
            flush=True,
        )
        torch.cuda.empty_cache()
    return 0 if all(each["equal"] for each in results["models"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
