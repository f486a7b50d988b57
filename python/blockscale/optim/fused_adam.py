# SPDX-License-Identifier: Apache-2.0
"""`FusedAdam`: Adam and AdamW on FP32 masters, for NVFP4 and for floating-point parameters.

One launch steps all tensors of a parameter group (`adam_list.py`); NVFP4 parameters are then quantized from their
masters by the code of `cast_master_weights_to_nvfp4`. Formulas: numerics, section 18.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..errors import not_offered, type_error, value_error
from ..tensor import NVFP4Tensor
from .adam_list import AdamItem, AdamList, AdamSettings
from .param_state import (
    FLOAT_STATE,
    OP,
    check_param,
    has_own_master,
    init_state,
    item_of,
    local,
    local_grad,
    pack_steps,
)
from .write_back import WriteBack


class FusedAdam(Optimizer):
    """Adam or AdamW that keeps an FP32 master of every parameter that is not FP32 itself.

    Takes float32, bfloat16, float16 and `NVFP4Tensor` parameters, and DTensors of these (FSDP2). State for each
    parameter: "step", "exp_avg", "exp_avg_sq", and "master" unless it is float32; all FP32, of the local shape, exact
    through `state_dict` and `load_state_dict`. The step count is a tensor on the device and nothing waits for the
    device, so a step can be captured in a CUDA graph after one eager step; a changing learning rate must then be a
    tensor.

    Gradients may be float32, bfloat16 or float16. GradScaler is understood: its scale divides out inside the kernel,
    and a step with inf or NaN gradients changes nothing.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        adam_w_mode: bool = True,
        maximize: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        differentiable: bool = False,
        master_weights: Mapping[Tensor, Tensor] | None = None,
        round_master_to_model_dtype: bool = True,
        group: Any = None,
    ) -> None:
        """Makes the optimizer; the state is made at the first step.

        Args:
            params: parameters, or dicts of parameter groups, as for every torch optimizer.
            lr: learning rate; a float, or a float32 scalar tensor.
            betas, eps, weight_decay: as for torch.optim.AdamW.
            amsgrad: not offered.
            adam_w_mode: True: decoupled weight decay (AdamW). False: it is added to the gradient (L2).
            maximize: climb instead of descend.
            capturable, foreach, fused: accepted, as torch's optimizers take them, and without effect: a step is always
                fused and capturable. fused=False is refused.
            differentiable: not offered.
            master_weights: parameter -> high-precision values that its master starts from. Without an entry the master
                starts from the parameter's own value; for NVFP4 that is what quantizing has left of it.
            round_master_to_model_dtype: as for `cast_master_weights_to_nvfp4`: NVFP4 parameters are quantized from the
                master rounded to their nominal dtype (True), or from the FP32 master (False).
            group: ranks whose NVFP4 parameters are shards of one weight (rows that start at a multiple of 16) or copies
                of it: their amax is taken over the group. DTensors bring their own; None otherwise: no collectives.

        Raises:
            TypeError, ValueError: arguments out of range, or parameters that cannot be stepped.
            NotImplementedError: amsgrad, differentiable, or fused=False.
        """
        for name, asked in (("amsgrad", amsgrad), ("differentiable", differentiable)):
            if asked:
                raise not_offered(OP, name, "False", asked)
        if fused is False:
            raise not_offered(OP, "fused", "True or None", fused, "Use torch.optim.AdamW for an unfused step.")
        self._plans: dict[tuple[int, torch.device], _Plan] = {}
        self._masters = dict(master_weights or {})
        self._write_back = WriteBack(group, round_master_to_model_dtype)
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": False,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": False,
            "fused": True,  # torch's word for a step count that lives on the parameter's device
            "adam_w_mode": adam_w_mode,
        }
        super().__init__(params, defaults)
        self._step_supports_amp_scaling = True
        unknown = self._masters.keys() - set(itertools.chain.from_iterable(g["params"] for g in self.param_groups))
        if unknown:
            raise value_error(OP, "master_weights", "of parameters of this optimizer", f"{len(unknown)} others")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group, as for every torch optimizer.

        Raises:
            TypeError, ValueError: settings out of range, or parameters that cannot be stepped. Nothing is added.
        """
        _check_settings({**self.defaults, **param_group})
        super().add_param_group(param_group)
        try:
            for param in self.param_groups[-1]["params"]:
                check_param(param)
        except (TypeError, ValueError):
            del self.param_groups[-1]
            raise

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes one step with the gradients that are there; parameters without one are left alone.

        Args:
            closure: evaluates the model again and returns the loss; optional.

        Returns:
            What the closure returned, or None.

        Raises:
            TypeError, ValueError: a gradient or a state that does not fit; no parameter of its group has changed then.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        inv_scale, found_inf = self._amp()
        written: list[tuple[NVFP4Tensor, Tensor, Tensor]] = []
        for index, group in enumerate(self.param_groups):
            for device, params in _by_device(group["params"]).items():
                grads = [local_grad(param) for param in params]
                plan = self._plans.get((index, device))
                if plan is None or not plan.fits(params, grads, self.state):
                    plan = self._plans[index, device] = self._plan(params, grads, device)
                plan.step(grads, _settings(group, device), _on(inv_scale, device), _on(found_inf, device))
                written += plan.quantized
        if written:
            self._write_back(written)
        return loss

    def master(self, param: Tensor) -> Tensor:
        """The FP32 master of a parameter, of its local shape and sharing storage: itself where it is float32.

        Raises:
            ValueError: not a parameter of this optimizer.
        """
        if not any(param is known for group in self.param_groups for known in group["params"]):
            raise value_error(OP, "param", "a parameter of this optimizer", tuple(param.shape))
        init_state(param, self.state[param], self._masters.get(param))
        return local(self.state[param].get("master", param)).detach()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads what `state_dict` gave: FP32 state is copied exactly, never through the parameter's dtype.

        State of torch.optim.Adam and AdamW is taken too. It has no masters: they start from the parameters.
        """
        saved = state_dict["state"]
        exact = {
            key: {name: value for name, value in state.items() if name in FLOAT_STATE}
            for key, state in saved.items()
            if isinstance(state, dict)
        }
        stripped = {
            key: {name: value for name, value in state.items() if name not in FLOAT_STATE}
            if isinstance(state, dict) else state
            for key, state in saved.items()
        }  # fmt: skip
        keys = list(itertools.chain.from_iterable(group["params"] for group in state_dict["param_groups"]))
        super().load_state_dict({**state_dict, "state": stripped})
        params = itertools.chain.from_iterable(group["params"] for group in self.param_groups)
        for key, param in zip(keys, params, strict=True):
            if "step" in self.state[param]:
                self.state[param]["step"] = self.state[param]["step"].clone()  # super() shares it with state_dict
            for name, value in exact.get(key, {}).items():
                if name != "master" or has_own_master(param):
                    self.state[param][name] = value.detach().to(local(param).device, torch.float32, copy=True)
        self._plans.clear()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)
            group["fused"] = True
        self._plans = {}

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and deepcopy. Plans are made again; a process group cannot be pickled."""
        own = {"_masters": self._masters, "_write_back": self._write_back, "_step_supports_amp_scaling": True}
        return {**super().__getstate__(), **own}

    def _plan(self, params: list[Tensor], grads: list[Tensor], device: torch.device) -> _Plan:
        for param in params:
            init_state(param, self.state[param], self._masters.pop(param, None))
        states = [self.state[param] for param in params]
        steps = pack_steps(states, device)
        items = [item_of(param, state) for param, state in zip(params, states, strict=True)]
        return _Plan(params, items, grads, steps, self.state)

    def _amp(self) -> tuple[Tensor | None, Tensor | None]:
        """The inverse loss scale, and the flag that says that a gradient is inf or NaN, if GradScaler has set them."""
        grad_scale: Tensor | None = getattr(self, "grad_scale", None)
        found_inf: Tensor | None = getattr(self, "found_inf", None)
        inv_scale = None if grad_scale is None else grad_scale.double().reciprocal().float()
        return inv_scale, found_inf


class _Plan:
    """Parameters of a group on one device: their list for the kernel, and what it was made from."""

    def __init__(
        self, params: list[Tensor], items: list[AdamItem], grads: list[Tensor], steps: Tensor,
        state: Mapping[Tensor, dict[str, Any]],
    ) -> None:  # fmt: skip
        self._params = params
        self._local = [local(param) for param in params]
        self._plain = [values for values in self._local if not isinstance(values, NVFP4Tensor)]
        self._addresses = [values.data_ptr() for values in self._plain]
        self._state = [_of_state(state[param]) for param in params]
        self._steps = steps
        self._list = AdamList(items, grads)
        self.quantized = [
            (values, item.master, param)
            for values, param, item in zip(self._local, params, items, strict=True)
            if isinstance(values, NVFP4Tensor)
        ]

    def fits(self, params: list[Tensor], grads: list[Tensor], state: Mapping[Tensor, Any]) -> bool:
        """Whether it was made for these very tensors, with their state where it was."""
        if len(params) != len(self._params) or not all(map(operator.is_, params, self._params)):
            return False
        if not all(map(operator.is_, map(local, params), self._local)):
            return False
        if [values.data_ptr() for values in self._plain] != self._addresses:
            return False
        for param, kept in zip(params, self._state, strict=True):
            if not all(map(operator.is_, _of_state(state[param]), kept)):
                return False
        return tuple(grad.dtype for grad in grads) == self._list.grad_dtypes

    def step(self, grads: list[Tensor], settings: AdamSettings, inv_scale: Tensor | None,
             found_inf: Tensor | None) -> None:  # fmt: skip
        self._steps.add_(1)
        if found_inf is not None:
            self._steps.sub_(found_inf)
        self._list.run(grads, settings, inv_scale, found_inf)
        torch.autograd.graph.increment_version(self._params)


def _of_state(state: dict[str, Any]) -> tuple[Any, ...]:
    """The tensors of a parameter's state, in one order."""
    return state.get("step"), state.get("exp_avg"), state.get("exp_avg_sq"), state.get("master")


def _by_device(params: Iterable[Tensor]) -> dict[torch.device, list[Tensor]]:
    """Parameters with a gradient, by device."""
    found: dict[torch.device, list[Tensor]] = {}
    for param in params:
        if param.grad is not None:
            found.setdefault(param.device, []).append(param)
    return found


def _settings(group: dict[str, Any], device: torch.device) -> AdamSettings:
    _check_settings(group)
    lr = group["lr"]
    if isinstance(lr, Tensor) and lr.device != device:
        lr = float(lr)
    return AdamSettings(
        lr, group["betas"], group["eps"], group["weight_decay"], bool(group["maximize"]), bool(group["adam_w_mode"])
    )


def _on(scalar: Tensor | None, device: torch.device) -> Tensor | None:
    return None if scalar is None else scalar.to(device, torch.float32, non_blocking=True)


def _check_settings(group: Mapping[str, Any]) -> None:
    lr, betas = group["lr"], group["betas"]
    if isinstance(lr, Tensor):
        if lr.dtype is not torch.float32 or lr.numel() != 1:
            raise type_error(OP, "lr", "a float, or a float32 tensor of one element", f"{lr.dtype}, {tuple(lr.shape)}")
    elif not (math.isfinite(lr) and lr >= 0):
        raise value_error(OP, "lr", "finite and not negative", lr)
    if len(betas) != 2 or not all(0.0 <= beta < 1.0 for beta in betas):
        raise value_error(OP, "betas", "two numbers in [0, 1)", betas)
    for name in ("eps", "weight_decay"):
        if not (math.isfinite(group[name]) and group[name] >= 0):
            raise value_error(OP, name, "finite and not negative", group[name])
