# SPDX-License-Identifier: Apache-2.0
"""FusedAdam as a torch optimizer: every step has the bits of the oracle, and torch's conventions hold."""

from __future__ import annotations

import copy
import io
import itertools
from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale import NVFP4Tensor
from blockscale.optim import FusedAdam
from tests.bits import assert_bits_equal

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def parameters(device: torch.device, gen: torch.Generator) -> list[torch.nn.Parameter]:
    """Parameters of every kind: float32, bfloat16, float16, a scalar, an empty one, channels last, NVFP4."""
    shapes_dtypes = (((40, 32), F32), ((33,), BF16), ((7, 5, 3), F16), ((), F32), ((0, 4), BF16))
    made = [torch.nn.Parameter(torch.randn(s, generator=gen).to(device, d)) for s, d in shapes_dtypes]
    image = torch.randn(4, 3, 6, 5, generator=gen).to(device, BF16, memory_format=torch.channels_last)
    made.append(torch.nn.Parameter(image))
    for shape, columnwise in (((48, 64), True), ((17, 32), False)):
        values = torch.randn(shape, generator=gen).to(device, BF16)
        made.append(torch.nn.Parameter(NVFP4Tensor.quantize(values, block=(16, 16), columnwise=columnwise)))
    return made


class Shadow:
    """The oracle's run beside an optimizer: masters, means and squares of each parameter."""

    def __init__(self, params: list[torch.nn.Parameter], masters: dict[Any, torch.Tensor] | None = None) -> None:
        given = masters or {}
        self.state = {
            p: [given[p].float().clone() if p in given else value_of(p), *(torch.zeros(p.shape) for _ in range(2))]
            for p in params
        }
        self.steps = dict.fromkeys(params, 0)

    def step(self, group: dict[str, Any], inv_scale: float = 1.0) -> None:
        for p in group["params"]:
            if p.grad is None:
                continue
            self.steps[p] += 1
            self.state[p] = list(bs.reference.adam(
                *self.state[p], p.grad.cpu(), step=self.steps[p], lr=float(group["lr"]), betas=group["betas"],
                eps=group["eps"], weight_decay=group["weight_decay"], adam_w_mode=group["adam_w_mode"],
                maximize=group["maximize"], inv_scale=inv_scale,
            ))  # fmt: skip

    def compare(self, optimizer: FusedAdam) -> None:
        for number, (p, (master, mean, square)) in enumerate(self.state.items()):
            assert_bits_equal(optimizer.master(p), master, f"master of {number}")
            if p not in optimizer.state or "exp_avg" not in optimizer.state[p]:
                continue
            state = optimizer.state[p]
            assert_bits_equal(state["exp_avg"], mean, f"exp_avg of {number}")
            assert_bits_equal(state["exp_avg_sq"], square, f"exp_avg_sq of {number}")
            assert float(state["step"]) == self.steps[p]
            if self.steps[p] == 0:
                continue
            rounded = master.to(p.dtype)
            if isinstance(p, NVFP4Tensor):
                want = bs.reference.quantize(rounded, block=(16, 16))
                assert_bits_equal(p.rowwise.qdata, want.qdata, f"codes of {number}")
                assert_bits_equal(p.rowwise.block_scale.view(torch.uint8), want.block_scale.view(torch.uint8), "scales")
                assert_bits_equal(p.rowwise.amax, want.amax, "amax")
                if p.wants_columnwise:
                    assert_bits_equal(p.columnwise.qdata, bs.transpose(p.rowwise).qdata, f"columnwise of {number}")
            else:
                assert_bits_equal(p, rounded, f"parameter {number}")


def value_of(p: torch.Tensor) -> torch.Tensor:
    values = p.detach().dequantize(F32) if isinstance(p, NVFP4Tensor) else p.detach().float()
    return values.cpu().clone()


def set_grads(params: list[torch.nn.Parameter], gen: torch.Generator) -> None:
    for p in params:
        p.grad = torch.randn(p.shape, generator=gen).to(p.device, p.dtype)


GROUPS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "L2, maximize": {"adam_w_mode": False, "maximize": True, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.1},
    "no decay": {"weight_decay": 0.0, "lr": 0.1},
}


@pytest.mark.parametrize("name", GROUPS)
def test_steps_have_the_bits_of_the_oracle(name: str, device: torch.device, gen: torch.Generator) -> None:
    params = parameters(device, gen)
    shadow = Shadow(params)
    optimizer = FusedAdam(params, **GROUPS[name])
    addresses = [t.data_ptr() for p in params if isinstance(p, NVFP4Tensor) for t in p._held.tensors()]
    for step in range(4):
        set_grads(params, gen)
        if step == 2:
            params[1].grad = params[6].grad = None  # left alone, and behind by a step from here on
        shadow.step(optimizer.param_groups[0])
        optimizer.step()
        shadow.compare(optimizer)
    assert addresses == [t.data_ptr() for p in params if isinstance(p, NVFP4Tensor) for t in p._held.tensors()]


def test_groups_schedulers_and_closures(device: torch.device, gen: torch.Generator) -> None:
    params = parameters(device, gen)
    shadow = Shadow(params)
    optimizer = FusedAdam([{"params": params[:3], "weight_decay": 0.0}, {"params": params[3:], "lr": 0.01}], lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=[0.1, 0.02], total_steps=8)  # moves beta1 too

    def closure() -> float:
        assert torch.is_grad_enabled()
        set_grads(params, gen)
        for group in optimizer.param_groups:
            shadow.step(group)
        return 3.0

    for _ in range(5):
        assert optimizer.step(closure) == 3.0
        shadow.compare(optimizer)
        schedule.step()
    optimizer.zero_grad()
    assert all(p.grad is None for p in params)


def test_a_tensor_learning_rate(device: torch.device, gen: torch.Generator) -> None:
    params = parameters(device, gen)
    shadow = Shadow(params)
    rate = torch.tensor(0.1, device=device)
    optimizer = FusedAdam(params, lr=rate, capturable=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.3)
    for _ in range(3):
        set_grads(params, gen)
        shadow.step(optimizer.param_groups[0])
        optimizer.step()
        schedule.step()
        shadow.compare(optimizer)
    assert rate.data_ptr() == optimizer.param_groups[0]["lr"].data_ptr()


def test_gradients_of_other_dtypes_and_orders(device: torch.device, gen: torch.Generator) -> None:
    param = torch.nn.Parameter(torch.randn(6, 8, generator=gen).to(device))
    image = torch.nn.Parameter(torch.randn(2, 3, 4, 5, generator=gen).to(device).to(memory_format=torch.channels_last))
    params = [param, image]
    shadow = Shadow(params)
    optimizer = FusedAdam(params)
    for dtype in (F32, BF16, F16):
        param.grad_dtype = image.grad_dtype = None
        param.grad = torch.randn(8, 6, generator=gen).to(device, dtype).t()
        image.grad = torch.randn(2, 3, 4, 5, generator=gen).to(device, dtype)
        shadow.step(optimizer.param_groups[0])
        optimizer.step()
        shadow.compare(optimizer)


def test_masters_start_from_given_values(device: torch.device, gen: torch.Generator) -> None:
    """Without them a master is what quantizing has left; the first step then starts elsewhere."""
    values = torch.randn(32, 32, generator=gen)
    weight = torch.nn.Parameter(NVFP4Tensor.quantize(values.to(device, BF16), block=(16, 16)))
    half = torch.nn.Parameter(values.to(device, BF16))
    given = {weight: values.to(device), half: values.to(device)}
    optimizer = FusedAdam([weight, half], master_weights=given)
    shadow = Shadow([weight, half], {p: v.cpu() for p, v in given.items()})
    shadow.compare(optimizer)
    set_grads([weight, half], gen)
    shadow.step(optimizer.param_groups[0])
    optimizer.step()
    shadow.compare(optimizer)
    assert_bits_equal(FusedAdam([half]).master(half), half.detach().float(), "from the parameter")
    with pytest.raises(ValueError, match=r"FusedAdam: master_weights must be of shape \(32, 32\); got \(4,\)\."):
        FusedAdam([weight], master_weights={weight: torch.zeros(4)}).master(weight)
    with pytest.raises(ValueError, match="master_weights must be of parameters of this optimizer; got 1 others"):
        FusedAdam([weight], master_weights={half: values})


def test_rounding_of_the_master_can_be_switched_off(gen: torch.Generator) -> None:
    values = torch.randn(64, 64, generator=gen)
    codes = []
    for rounded in (True, False):
        weight = torch.nn.Parameter(NVFP4Tensor.quantize(values.to(BF16), block=(16, 16)))
        optimizer = FusedAdam([weight], master_weights={weight: values}, round_master_to_model_dtype=rounded)
        weight.grad = torch.ones(64, 64, dtype=BF16)
        optimizer.step()
        master = optimizer.master(weight)
        want = bs.reference.quantize(master.to(BF16) if rounded else master, block=(16, 16))
        assert_bits_equal(weight.rowwise.qdata, want.qdata, f"rounded={rounded}")
        codes.append(weight.rowwise.qdata.clone())
    assert not torch.equal(*codes)


# state ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("through", ["memory", "file", "pickle", "deepcopy"])
def test_state_goes_out_and_comes_back_exactly(through: str, device: torch.device, gen: torch.Generator) -> None:
    """Masters keep bits that the parameter's dtype cannot hold, and both optimizers then go the same way."""
    params = parameters(device, gen)
    optimizer = FusedAdam(params)
    set_grads(params, gen)
    optimizer.step()
    optimizer.step()
    if through in ("pickle", "deepcopy"):
        both = copy.deepcopy((params, optimizer)) if through == "deepcopy" else _pickled((params, optimizer))
        others, other = both
    else:
        others = copy.deepcopy(params)
        other = FusedAdam(others, lr=77.0)
        state = optimizer.state_dict()
        if through == "file":
            file = io.BytesIO()
            torch.save(state, file)
            file.seek(0)
            state = torch.load(file, weights_only=True)
        other.load_state_dict(state)
    assert other.param_groups[0]["lr"] == 1e-3
    for _ in range(2):
        for p, q in zip(params, others, strict=True):
            assert optimizer.state[p].keys() == other.state[q].keys()
            for name, value in optimizer.state[p].items():
                assert other.state[q][name].dtype is F32
                assert_bits_equal(other.state[q][name], value, name)
                assert other.state[q][name].data_ptr() != value.data_ptr() or value.numel() == 0
            assert_bits_equal(value_of(q), value_of(p), "parameter")
        for p, q in zip(params, others, strict=True):
            p.grad = torch.randn(p.shape, generator=gen).to(p.device, p.dtype)
            q.grad = p.grad.clone()
        optimizer.step()
        other.step()


def _pickled(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_state_of_torch_adamw_is_taken(gen: torch.Generator) -> None:
    param = torch.nn.Parameter(torch.randn(20, generator=gen))
    theirs = torch.optim.AdamW([param])
    for _ in range(3):
        param.grad = torch.randn(20, generator=gen)
        theirs.step()
    ours = FusedAdam([param])
    ours.load_state_dict(theirs.state_dict())
    state = theirs.state[param]
    param.grad = torch.randn(20, generator=gen)
    want = bs.reference.adam(param.detach(), state["exp_avg"], state["exp_avg_sq"], param.grad, step=4)
    ours.step()
    assert_bits_equal(param.detach(), want[0], "parameter")
    assert float(ours.state[param]["step"]) == 4


def test_state_that_is_replaced_by_hand_is_used(gen: torch.Generator) -> None:
    param = torch.nn.Parameter(torch.randn(20, generator=gen))
    optimizer = FusedAdam([param])
    for repetition in range(3):
        param.grad = torch.randn(20, generator=gen)
        if repetition:
            optimizer.state[param]["exp_avg"] = torch.ones(20)
            if repetition == 2:
                param.data = torch.zeros(20)
            state = optimizer.state[param]
            want = bs.reference.adam(
                param.detach(), torch.ones(20), state["exp_avg_sq"], param.grad, step=repetition + 1
            )
        optimizer.step()
        if repetition:
            assert_bits_equal(param.detach(), want[0], "parameter")


# loss scaling ---------------------------------------------------------------------------------------------------------


def test_grad_scaler(device: torch.device, gen: torch.Generator) -> None:
    """The scale divides out; a step with an inf changes nothing, the count included; both with and without unscale_."""
    for unscale, spoiled in itertools.product((False, True), repeat=2):
        params = [p for p in parameters(device, gen) if p.dtype is not F16]  # whose gradients GradScaler refuses
        shadow = Shadow(params)
        optimizer = FusedAdam(params)
        set_grads(params, gen)
        shadow.step(optimizer.param_groups[0])
        optimizer.step()
        scaler = torch.amp.GradScaler(device.type, init_scale=1024.0)
        scaler.scale(torch.zeros((), device=device))  # makes its tensors
        set_grads(params, gen)
        if not spoiled:
            shadow.step(optimizer.param_groups[0])
        for p in params:
            p.grad *= 1024
        if spoiled:
            params[2].grad.fill_(float("inf"))
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        shadow.compare(optimizer)
        assert not hasattr(optimizer, "found_inf")
        assert scaler.get_scale() == (512.0 if spoiled else 1024.0)


# refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keywords", "kind", "text"),
    [
        ({"amsgrad": True}, NotImplementedError, "FusedAdam: amsgrad must be False; got True."),
        ({"differentiable": True}, NotImplementedError, "FusedAdam: differentiable must be False; got True."),
        ({"fused": False}, NotImplementedError, "FusedAdam: fused must be True or None; got False."),
        ({"lr": -1.0}, ValueError, "FusedAdam: lr must be finite and not negative; got -1.0."),
        ({"lr": float("nan")}, ValueError, "FusedAdam: lr must be finite"),
        ({"lr": torch.tensor(1.0).double()}, TypeError, "FusedAdam: lr must be a float, or a float32 tensor of one"),
        ({"betas": (0.9, 1.0)}, ValueError, "FusedAdam: betas must be two numbers in [0, 1); got (0.9, 1.0)."),
        ({"eps": -1e-8}, ValueError, "FusedAdam: eps must be finite and not negative; got -1e-08."),
        ({"weight_decay": float("inf")}, ValueError, "FusedAdam: weight_decay must be finite"),
    ],
)
def test_settings_out_of_range(keywords: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as caught:
        FusedAdam([torch.nn.Parameter(torch.ones(2))], **keywords)
    assert type(caught.value) is kind and str(caught.value).startswith(text)


def test_parameters_and_gradients_that_cannot_be_stepped() -> None:
    with pytest.raises(TypeError, match=r"params must be of dense float32, bfloat16 or float16; got torch\.float64"):
        FusedAdam([torch.nn.Parameter(torch.ones(2, dtype=torch.float64))])
    with pytest.raises(ValueError, match=r"params must be dense, without gaps or overlaps; got strides \(2,\)"):
        FusedAdam([torch.nn.Parameter(torch.ones(4)[::2])])
    good = torch.nn.Parameter(torch.ones(3, 2))
    optimizer = FusedAdam([good])
    with pytest.raises(TypeError, match="params must be of dense"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2).double())]})
    assert len(optimizer.param_groups) == 1
    good.grad = torch.ones(3, 2).to_sparse()
    with pytest.raises(TypeError, match="grad must be a dense float32, bfloat16 or float16 tensor"):
        optimizer.step()
    good.grad = torch.ones(3, 2)
    optimizer.state[good]["exp_avg"] = torch.zeros(3, 2, dtype=BF16)
    with pytest.raises(TypeError, match=r"state\['exp_avg'\] must be float32; got torch.bfloat16"):
        optimizer.step()
    optimizer.state[good]["exp_avg"] = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"state\['exp_avg'\] must be of shape \(3, 2\)"):
        optimizer.step()
    assert good.tolist() == [[1.0] * 2] * 3
    with pytest.raises(ValueError, match="param must be a parameter of this optimizer"):
        optimizer.master(torch.ones(2))


def test_a_step_is_seen_by_autograd() -> None:
    """Backward through a value that was saved before a step must be an error, not a wrong gradient."""
    plain = torch.nn.Parameter(torch.ones(16, 16))
    optimizer = FusedAdam([plain])
    y = (plain * plain).sum()
    plain.grad = torch.ones(16, 16)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    weight = torch.nn.Parameter(NVFP4Tensor.quantize(torch.ones(16, 16), block=(16, 16)))
    before = weight._version
    weight.grad = torch.ones(16, 16)
    FusedAdam([weight]).step()
    assert weight._version > before
