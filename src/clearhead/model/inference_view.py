"""inference_view: a copy of a model in evaluation mode that shares its weights and leaves the original unchanged."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

Model = TypeVar("Model", bound=nn.Module)
CURRENT = ("observer", "ablated_heads", "hidden_keys")  # attributes of an attention that may change while it is used


def inference_view(model: Model) -> Model:
    """The same model in evaluation mode, made of new module objects that share the weights; the original is only read.

    Parameters and buffers are shared, also those that are put in their place later (as FSDP does). Hooks, observers,
    switched-off heads and hidden keys are those that the model has now; `refresh` takes over later ones, but no hooks.
    Wrappers of `torch.compile` are left out: a view is run as plain Python.

    >>> model = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5))
    >>> view = inference_view(model)
    >>> view[0] is model[0], view[0].weight is model[0].weight, view.training, model.training
    (False, True, False, True)
    """
    clones: dict[nn.Module, nn.Module] = {}
    view = _clone(model, clones)
    pairs = [(vars(clone), vars(module)) for module, clone in clones.items() if hasattr(module, "hidden_keys")]
    vars(view)["_attentions"] = pairs
    return view


def refresh(view: nn.Module) -> None:
    """Copies the current observers, switched-off heads and hidden keys of the model's attentions to the view."""
    for attributes, original in vars(view)["_attentions"]:
        for name in CURRENT:
            attributes[name] = original.get(name)


def _clone(module: Model, clones: dict[nn.Module, nn.Module]) -> Model:
    """One module and those below it; a module that is used twice is cloned once."""
    if module in clones:
        return clones[module]  # type: ignore[return-value]
    inner = getattr(module, "_orig_mod", None)
    if isinstance(inner, nn.Module):
        clones[module] = _clone(inner, clones)
        return clones[module]  # type: ignore[return-value]
    clones[module] = clone = object.__new__(type(module))  # FSDP gives modules a __new__ that makes another class
    # Around nn.Module's own setting of attributes, which would register what it is given.
    state = clone.__dict__
    state.update(module.__dict__)
    for name, value in module.__dict__.items():
        if "_hooks" in name and hasattr(value, "copy"):
            state[name] = value.copy()
    children = module._modules.items()
    state["_modules"] = {name: None if child is None else _clone(child, clones) for name, child in children}
    state["training"], state["_compiled_call_impl"] = False, None
    return clone
