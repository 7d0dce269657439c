"""PEFT: which parameters of a model are its adapters, for a posterior over them alone."""

from __future__ import annotations

from typing import Any

from whence.errors import BadOption, NothingSelected, need

need("peft", "peft")

HEADS = "modules_to_save"  # where PEFT keeps copies of whole modules that are trained beside adapters


def adapters(model: Any, name: str | None = None, *, heads: bool = False) -> list[str]:
    """The names of a model's adapter parameters, for ``layers=``.

    Without ``layers=`` a posterior is over all that PEFT left trainable: the adapters, and new heads with them.

    Args:
        model: a ``PeftModel`` (or another model with adapters of PEFT in it) whose adapters are trainable.
        name: of one adapter; by default the active ones.
        heads: whether heads and other modules that are trained whole (``modules_to_save``) are included.
    """
    known = list(getattr(model, "peft_config", ()))
    if not known:
        raise BadOption(f"{type(model).__name__} has no adapters of PEFT; pass what peft.get_peft_model returns.")
    if name is not None and name not in known:
        raise BadOption(f"name={name!r}: the model's adapters are {', '.join(map(repr, known))}.")
    free = [n for n, p in model.named_parameters() if p.requires_grad]
    found = [n for n in free if (heads or HEADS not in n.split(".")) and (name is None or name in n.split("."))]
    if not found:
        which = "adapters" if name is None else f"parameters of the adapter {name!r}"
        raise NothingSelected(
            f"the {which} are frozen or not active. Load them with PeftModel.from_pretrained(…, is_trainable=True), "
            "or call model.set_adapter(name)."
        )
    return found
