"""Modules as pure functions f(params, x), on a snapshot that later changes by the user do not affect."""

from __future__ import annotations

import contextlib
import hashlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from whence.closures import OnlyOwn
from whence.copies import check_parameters, clear_caches, copy_module, find_caches, no_model, no_parameters, unwrap
from whence.engine.batches import Data, Inputs, as_inputs, as_source, is_pair, map_tensors, size_of, tensors_in
from whence.engine.contexts import ContiguousGradients, fused_attention_off, has_batch_norm
from whence.errors import BadData, UnsupportedLayer
from whence.labels import argument_names, label_rule
from whence.outputs import output_tensor

EXTRA = "_extra_state"  # torch's key in a state dict for ``get_extra_state``
OBJECT = "_whence_returns_object"  # on the private copy of a module
EXAMPLE = "_whence_example"  # the same; shapes of one training example


@dataclass
class Runtime:
    """Findings while running a network: which differentiation methods work, and how much fits into memory."""

    batched_backward: bool = True  # until an operation cannot be batched
    vmapped_backward: bool = True  # the same by vmap, which is faster
    forward_mode: bool = True  # until a forward derivative is missing or wrong
    vmapped_examples: bool = True  # until per-example gradients cannot be vectorised
    compared: set[Any] = field(default_factory=set)  # batched derivatives that agree with plain ones
    inputs_together: int | None = None  # inputs of a prediction that fit, after memory ran out
    confirmed: bool = False  # whether later inputs have been checked thoroughly
    layouts: dict[Any, Any] = field(default_factory=dict)  # layouts of calls that the first batch did not make
    fitting_layouts: dict[Any, bool] = field(default_factory=dict)  # whether sizes match a layout, by call


class Network:
    """A private copy of a module, in evaluation mode. Its parameters require gradients only if selected."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.params: dict[str, nn.Parameter] = dict(module.named_parameters())  # tied ones once
        self.names_by_id = {id(p): name for name, p in self.params.items()}
        self.runtime = Runtime()
        self.originals: dict[int, Any] = {}  # weak references to parameters of the network that was copied
        self.hash = ""  # of the weights and buffers at the snapshot
        self.autocast: torch.dtype | None = None  # autocast dtype of the forward pass
        # δ of the linear model f*(x) + J(x) δ, where outputs that are recorded are its, and x → J(x) δ
        self.shift: dict[str, Tensor] | None = None
        self.moved: Callable[[Inputs], Tensor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k not in ("params", "names_by_id")} | {"originals": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Rebuild the maps by identity, since a copy has its own parameters."""
        vars(self).update(state)
        self.params = dict(self.module.named_parameters())
        self.names_by_id = {id(p): name for name, p in self.params.items()}

    @classmethod
    def snapshot(cls, model: nn.Module) -> Network:
        """Copy ``model``; the original is not changed, and no reference is kept."""
        if not isinstance(model, nn.Module):
            raise BadData(no_model(model))
        network = cls(copy_module(unwrap(model)).eval())
        if not network.params:
            raise BadData(no_parameters(model))
        check_parameters(network.params)
        network.refuse_replaced()
        network.hash = weights_hash(network.module)
        network.originals = {id(p): (name, weakref.ref(p)) for name, p in unwrap(model).named_parameters()}
        return network

    def read(self, data: Any, name: str = "data") -> Data:
        """Data for this network."""
        names = argument_names(self.module)
        return Data(data, self.device, self.dtype, name, label_rule(self.module), names, self.remember)

    def pieces(self, x: Any, batch_size: int) -> Iterator[Inputs]:
        """The inputs of ``predict`` in pieces for this network."""
        rule = label_rule(self.module)
        return as_inputs(self.only_inputs(x), self.device, self.dtype, batch_size, rule, check=self.check_inputs)

    def only_inputs(self, x: Any) -> Any:
        """Inputs or a loader; of an (inputs, targets) pair the inputs, where the network takes one tensor."""
        if isinstance(x, tuple) and len(x) == 2 and len(self.example_shapes or ()) == 1:
            pair = as_source(x)
            if is_pair(pair) and isinstance(pair[0], Tensor):
                return pair[0]
        return as_source(x, pairs=False, takes=argument_names(self.module), role="predict")

    @property
    def example_shapes(self) -> list[tuple[int, ...]] | None:
        """Shapes of the inputs of one training example, where data have been read."""
        return self.module.__dict__.get(EXAMPLE)

    def remember(self, inputs: Inputs) -> None:
        """Remember the shapes of one example of the first data that are read; check others against them."""
        if self.example_shapes is not None:
            self.check_inputs(inputs)
        else:
            self.module.__dict__[EXAMPLE] = [tuple(t.shape[1:]) for t in tensors_in(inputs) if t.dim()]

    def check_inputs(self, inputs: Inputs) -> None:
        """Refuse one example without its batch dimension, where the shape of a training example is known."""
        shapes = [tuple(t.shape) for t in tensors_in(inputs) if t.dim()]
        known = self.example_shapes
        if (
            known is not None
            and [len(s) for s in shapes] == [len(s) for s in known]
            and any(shapes)
            and not self._is_batch(inputs)
        ):
            given, one = (", ".join(str(list(s)) for s in some) for some in (shapes, known))
            raise BadData(
                f"the inputs have shape {given} without a batch dimension: one example of the training data has shape "
                f"{one}. Pass x.unsqueeze(0) (or x[None]) for one example."
            )

    def _is_batch(self, inputs: Inputs) -> bool:
        """Whether inputs with as many dimensions as one example are a batch all the same, by what comes out."""
        shapes: list[tuple[int, ...] | None] = []
        for some in (inputs, map_tensors(lambda t: t[None] if t.dim() else t, inputs)):
            try:
                with torch.no_grad():
                    shapes.append(tuple(self(some).shape))
            except Exception:
                shapes.append(None)
        found, one = shapes
        return found is not None and found[0] == size_of(inputs) and (one is None or found[1:] == one[1:])

    def overwrite(self, values: Mapping[str, Tensor]) -> None:
        """Set parameters to other values; the hash does not change."""
        with torch.no_grad():
            for name, value in values.items():
                self.params[name].copy_(value)

    def tensors(self) -> list[Tensor]:
        """Current buffers and other tensors of its modules."""
        return [t for m in self.module.modules() for part in (vars(m), m._buffers) for t in part.values() if _is(t)]

    @property
    def returns_object(self) -> bool:
        """Whether it returned an object with ``logits`` instead of a tensor; also known to copies of the module."""
        return bool(self.module.__dict__.get(OBJECT, False))

    @returns_object.setter
    def returns_object(self, value: bool) -> None:
        self.module.__dict__[OBJECT] = value

    @property
    def device(self) -> torch.device:
        return next(iter(self.params.values())).device

    @property
    def dtype(self) -> torch.dtype:
        floats = (p.dtype for p in self.params.values() if p.is_floating_point())
        return next(floats, torch.get_default_dtype())

    @property
    def like(self) -> Tensor:
        """An empty tensor with its dtype and device."""
        return torch.empty(0, dtype=self.dtype, device=self.device)

    def select(self, names: list[str] | tuple[str, ...]) -> None:
        """Make exactly these parameters require gradients (on the copy)."""
        chosen = set(names)
        for name, p in self.params.items():
            p.requires_grad_(name in chosen)

    @property
    def selected(self) -> list[str]:
        """The parameters that require gradients."""
        return [name for name, p in self.params.items() if p.requires_grad]

    def aliases(self, name: str) -> list[str]:
        """Every dotted name under which a (tied) parameter is known."""
        target = self.params[name]
        return [n for n, p in self.module.named_parameters(remove_duplicate=False) if p is target]

    def __call__(self, inputs: Inputs) -> Tensor:
        args, kwargs = arguments(inputs)
        try:
            with self.forward_pass():
                output = self.module(*args, **kwargs)
        except UnsupportedLayer:
            raise
        except TypeError as error:
            given = f"{len(args)} positional arguments" if args else f"the keywords {sorted(kwargs)}"
            pair = " If this is (inputs, targets), pass the inputs alone." if len(args) == 2 else ""
            pair = " If it takes its input without a name, yield pairs (inputs, targets)." if len(kwargs) == 1 else pair
            raise BadData(
                f"the network could not be called with {given}: {error}. A tensor is passed alone, a tuple is "
                f"unpacked, a mapping becomes keywords.{pair}"
            ) from error
        self.returns_object = not isinstance(output, Tensor)
        return self._in_own_precision(output_tensor(output, inputs))

    def functional(self, params: Mapping[str, Tensor], inputs: Inputs) -> Tensor:
        """f(params, x); parameters that are not given keep their trained values."""
        args, kwargs = arguments(inputs)
        with self.forward_pass():
            output = call_with(self.module, params, args, kwargs)
        if not isinstance(output, Tensor):
            self.returns_object = True
        return self._in_own_precision(output_tensor(output, inputs))

    def _in_own_precision(self, outputs: Tensor) -> Tensor:
        """Outputs that the network converts at its end, from double to single precision or back, as they were."""
        whole = (torch.float32, torch.float64)
        return outputs.to(self.dtype) if outputs.dtype in whole and self.dtype in whole else outputs

    def to(self, *args: Any, **kwargs: Any) -> Network:
        """A copy on another device or in another floating-point dtype."""
        moved = Network(copy_module(self.module).to(*args, **kwargs).eval())
        moved.select(self.selected)
        moved.hash, moved.autocast = self.hash, self.autocast
        return moved

    @contextlib.contextmanager
    def forward_pass(self) -> Iterator[None]:
        """The context of a forward pass. Casts are not cached: a cached weight would keep a freed graph."""
        with contextlib.ExitStack() as stack:
            if self.autocast is not None:
                stack.enter_context(torch.autocast(self.device.type, self.autocast, cache_enabled=False))
            if self.device.type == "cpu" and has_batch_norm(self.module):
                stack.enter_context(ContiguousGradients())
            clear_caches(self.module)
            try:
                yield
            finally:
                clear_caches(self.module)

    def find_caches(self, inputs: Inputs) -> None:
        """Find caches of forward passes in the modules, so that each pass uses its own weights."""
        with OnlyOwn(self.originals) if self.originals else contextlib.nullcontext():
            find_caches(self.module, lambda: self(inputs))
        self.refuse_replaced()

    def refuse_replaced(self) -> None:
        """Refuse a network that makes new parameters by itself: gradients would be those of the old ones."""
        for name, p in self.module.named_parameters():
            if self.params.get(name) is not p:
                raise UnsupportedLayer(
                    f"the network replaces its parameter {name!r} whenever it runs or lists its parameters (as PEFT's "
                    "adapters of nn.MultiheadAttention do). Keep one parameter: adapt separate Linear layers instead."
                )


def source_for(module: nn.Module, data: Any, role: str = "data") -> Any:
    """Data for a network as a pair or a loader, see :func:`as_source`."""
    return as_source(data, takes=argument_names(module), role=role)


def _is(value: Any) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor)


def call_with(
    module: nn.Module, values: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
) -> Any:
    """``module(*args, **kwargs)`` with other values for some of its parameters and buffers, which are not changed.

    A tied parameter is replaced once in every module that has it: torch would replace it twice in a module that has
    two names, and leave the new value in place.
    """
    places = _places(module)
    given = {place: value for name, value in values.items() for place in places.get(name, (name,))}
    clear_caches(module)
    try:
        return torch.func.functional_call(module, given, args, dict(kwargs or {}), tie_weights=False)
    finally:
        clear_caches(module)


_known_places: weakref.WeakKeyDictionary[nn.Module, dict[str, tuple[str, ...]]] = weakref.WeakKeyDictionary()


def _places(module: nn.Module) -> dict[str, tuple[str, ...]]:
    """The names at which to replace each tensor: one for each module that holds it."""
    if module not in _known_places:
        held: dict[int, list[str]] = {}
        for prefix, part in module.named_modules():  # each module once
            for name, tensor in (*part._parameters.items(), *part._buffers.items()):
                if tensor is not None:
                    held.setdefault(id(tensor), []).append(f"{prefix}.{name}" if prefix else name)
        every = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
        _known_places[module] = {name: tuple(held[id(tensor)]) for name, tensor in every}
    return _known_places[module]


def weights_hash(module: nn.Module) -> str:
    """Hash of the names, shapes and values of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        if not isinstance(tensor, Tensor):
            continue
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        value = tensor.detach().cpu()
        value = (value if value.layout is torch.strided else value.to_dense()).contiguous()
        value = value.to(torch.float32) if value.is_floating_point() else value
        digest.update(value.view(-1).numpy().data)
    return digest.hexdigest()


def tensors_of(module: nn.Module, keep_vars: bool = False) -> dict[str, Tensor]:
    """The tensors in the state of a module (without ``get_extra_state``)."""
    return {k: v for k, v in module.state_dict(keep_vars=keep_vars).items() if isinstance(v, Tensor)}


def load_tensors(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Load the tensors of :func:`tensors_of`; extra state does not change. Raises RuntimeError if names differ."""
    missing, unexpected = module.load_state_dict(tensors, strict=False)
    for what, keys in (("missing", missing), ("unknown", unexpected)):
        if other := [k for k in keys if k.rpartition(".")[2] != EXTRA]:
            raise RuntimeError(f"{other[0]!r} is {what}")


def refuse_batch_statistics(network: Network) -> None:
    """Refuse batch normalisation without running statistics, which makes examples depend on each other."""
    for name, module in network.module.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
            raise UnsupportedLayer(
                f"the batch normalisation {name!r} uses the statistics of the batch even in evaluation mode "
                "(track_running_stats=False), so examples depend on each other. Give it running statistics, or replace "
                "it with group normalisation."
            )


def described(inputs: Inputs) -> str:
    """Shapes and dtypes of the inputs."""
    args, kwargs = arguments(inputs)
    named = [("", value) for value in args] + [(f"{key}=", value) for key, value in kwargs.items()]
    parts = [f"{key}{list(v.shape)} {str(v.dtype).removeprefix('torch.')}" for key, v in named if isinstance(v, Tensor)]
    return f"({', '.join(parts)})"


def arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of ``model(...)``: a tensor as is, a tuple unpacked, a mapping as keywords."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, (tuple, list)):
        return tuple(inputs), {}
    return (inputs,), {}


_differentiable: ContextVar[tuple[int, bool] | None] = ContextVar("differentiable", default=None)


@contextlib.contextmanager
def differentiable(network: Network, fused: bool = False) -> Iterator[None]:
    """Settings that allow every backward pass that whence needs.

    Fused encoder kernels are off, attention uses its unfused form (it can be differentiated twice and batched;
    ``fused`` keeps it fused if neither is needed), and cuDNN is off for recurrent networks (its kernels do not support
    evaluation mode).
    """
    settings = (id(network), fused)
    if _differentiable.get() == settings and torch.is_grad_enabled():
        yield  # already active; for small batches the settings cost as much as a layer
        return
    recurrent = network.device.type == "cuda" and any(isinstance(m, nn.RNNBase) for m in network.module.modules())
    with contextlib.ExitStack() as stack:
        token = _differentiable.set(settings)
        stack.callback(_differentiable.reset, token)
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        if not fused:
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(fused_attention_off)
        if recurrent:
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        yield
