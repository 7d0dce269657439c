"""Believable audit records, made up from the contract: for tests of what shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.report.sample_sections import (
    deferral,
    deferral_steps,
    groups,
    label_tables,
    metric,
    novelty,
    pruning,
    quality,
    sensitivity,
    split,
    two_classes,
)

Record = dict[str, Any]
HOSTILE = "</script><img src=x onerror=alert(1)>&\u2028%{x}"
DEEP = "module.backbone_encoder."
KINDS = ("conv1", "conv2", "conv3", "conv4", "conv5", "conv6", "conv7", "fc1", "fc2", "fc3")
SECTIONS = (
    "quality", "deferral", "layers", "profile", "sensitivity", "maps", "inputs", "novelty", "pruning",
    "answers",
)  # fmt: skip


def images(
    layers: int = 4, units: int = 10, groups: int = 4, classes: Sequence[str] | None = None, shown: int = 12,
    title: str = "LeNet5 on digits", first: str = "conv1", seed: int = 0,
) -> Record:  # fmt: skip
    """A classifier of 8 × 8 digits, audited on digits and on letters."""
    rng = np.random.default_rng(seed)
    names = list(classes or map(str, range(10)))
    found = [first, *KINDS[1 : layers - 1], "fc3"] if layers > 1 else [first]
    inputs = [_picture(rng, "test" if i < shown // 2 else "ood", 17 + 31 * i, names, found) for i in range(shown)]
    record = _frame(title, "classification", found, names, [1, 8, 8])
    record["profile"] = _profile(rng, found, units, groups, names, inputs)
    record["layers"] = _layers(rng, record["profile"], found)
    record["maps"] = [_map(rng, name, i) for i, name in enumerate(found)]
    record["inputs"] = inputs
    record["novelty"] = novelty(rng, found)
    record["quality"] = quality(rng)
    record["deferral"] = deferral("error rate")
    record["pruning"] = pruning("accuracy")
    record["sensitivity"] = sensitivity(rng, found)
    return record


def large() -> Record:
    """Ten layers of 24 units with six groups each, and two dozen inputs: the size that the page must stand."""
    record = images(layers=10, units=24, groups=6, shown=24, title="Ten layers")
    rng = np.random.default_rng(1)
    record["maps"] = [_map(rng, layer["name"], i, 28, 16) for i, layer in enumerate(record["layers"])]
    return record


def people(classes: int = 10, hostile: bool = False) -> Record:
    """With tables by class, a binary decision, groups and a threshold to move."""
    names = [f"class {i}" if i else "a class with a long name that needs room" for i in range(classes)]
    if hostile:
        names[0] = HOSTILE
    record = images(classes=names, shown=2, title="People")
    record["quality"] |= label_tables(names) | {"two_classes": two_classes(names[1], names[0])}
    record["deferral"] |= {"steps": deferral_steps()}
    record["groups"] = groups([names[0], "south", "east", "islands"])
    return record


def deep(blocks: int = 7) -> Record:
    """A transformer: many layers, most of them with nearly no share, deep names that all begin alike."""
    rng = np.random.default_rng(5)
    parts = ("attn.qkv", "attn.proj", "mlp.intermediate_expansion")
    inner = [f"blocks.{i}.{part}" for i in range(blocks) for part in parts]
    found = [DEEP + name for name in ("patch_embedding", *inner, "classifier")]
    names = ["cat", "a class with a very long name that nobody wants to read in full " * 2, "dog"]
    inputs = [_picture(rng, "test", 5 + i, names, found) for i in range(3)]
    for item in inputs:
        item.update(pixels=None, words=f"Least in '{found[2]}'.")
    record = _frame("A transformer", "classification", found, names, [5, 6])
    record["data"]["ood"] = None
    record["profile"] = _profile(rng, found, 3, 0, names, inputs, ood=False)
    record["layers"] = _layers(rng, record["profile"], found)
    shapes = ((48, 16), (16, 48), (1, 64), (64, 64))
    record["maps"] = [_map(rng, name, 9, shape=shapes[i % 4]) for i, name in enumerate(found)]
    record["maps"][1] = {**_map(rng, found[1], 0, 28, 16), "kind": "pixels"}
    record["maps"][2] = {**_map(rng, found[2], 0, most=16, shape=(84, 28)), "kind": "pixels"}
    record["maps"][3] = {**_map(rng, found[3], 1, most=16, shape=(3, 63)), "kind": "filters"}
    record["inputs"] = inputs
    record["novelty"] = {**novelty(rng, found), "detectors": None}
    record["deferral"] = deferral("error rate")
    record["sensitivity"] = sensitivity(rng, found)
    record["answers"][0]["words"] = f"Yes: by a factor of 40 between '{found[0]}' and '{found[-1]}'."
    return {"quality": None, "pruning": None, **record}


def tabular(feature: str = "sepal length (cm)") -> Record:
    """A regression on rows of features, without data from elsewhere."""
    rng = np.random.default_rng(3)
    found, features = ["0", "2", "4"], [feature, "sepal width (cm)", "petal length (cm)"]
    record = _frame("Petal width from a table", "regression", found, None, [3])
    record["data"]["ood"] = None
    inputs = [_row(rng, 5 + 7 * i, features, found) for i in range(6)]
    record["profile"] = _profile(rng, found, 6, 3, None, inputs, ood=False)
    record["layers"] = _layers(rng, record["profile"], found)
    record["maps"] = [_map(rng, name, 9) for name in found]
    record["inputs"] = inputs
    record["novelty"] = {**novelty(rng, found), "detectors": None}
    record["novelty"]["sets"] = record["novelty"]["sets"][:2]
    record["quality"] = quality(rng)
    record["quality"].update(metrics=[metric("rmse", "Root mean squared error", 0.21, 0.21)], reliability=None)
    record["quality"]["uncertainty"].update(name="std", label="standard deviation of the prediction", ood=None)
    record["deferral"] = deferral("root mean squared error")
    record["pruning"] = pruning("rmse")
    record["sensitivity"] = sensitivity(rng, found)
    record["run"]["left_out"] = [{"what": "detectors", "why": "no out-of-distribution data"}]
    return record


def bare(interrupted: str | None = "quality") -> Record:
    """An audit that was stopped at once: nearly every section is missing."""
    record = _frame("Stopped", "outputs", ["fc1"], None, None)
    record["data"].update(test=None, validation=None, ood=None)
    record["run"].update(
        interrupted=interrupted, left_out=[{"what": name, "why": f"no test data for {name}"} for name in SECTIONS]
    )
    return {**record, **dict.fromkeys(SECTIONS)}


def hostile() -> Record:
    """Every name that a user chooses tries to leave its place."""
    record = images(layers=4, classes=[HOSTILE, *"123456789"], title=HOSTILE, first=HOSTILE)
    record["inputs"][0].update(pixels=None, row=[[HOSTILE, 1.0]], predicted=HOSTILE, words=HOSTILE)
    record["run"]["notices"] = [HOSTILE]
    record["verdict"]["words"] = HOSTILE
    record["network"]["kind"] = HOSTILE
    return record


def _frame(title: str, task: str, found: list[str], classes: list[str] | None, shape: list[int] | None) -> Record:
    """What every record has, with words for verdict and answers."""
    structures = [{"name": n, "kind": "Linear", "parameters": 400, "structure": "kron", "reason": ""} for n in found]
    return {
        "schema": "whence.audit/1", "created": "2026-11-15T14:00:00+00:00", "title": title, "task": task,
        "classes": classes, "comparison": None,
        "network": {"kind": "LeNet5", "parameters": 431080, "bayesian": 430592, "layers": len(found)},
        "data": {
            "train": {"inputs": 1000}, "test": {"inputs": 540, "cut": False},
            "validation": {"inputs": 257, "cut": False}, "ood": {"inputs": 500, "cut": True}, "input_shape": shape,
        },
        "verdict": {
            "words": "The network is right on 96.1% of the test data [94.2, 97.5], and its probabilities can be "
            "taken at their word: they miss the true rates by 1.3 percentage points on average. It notices 93% of "
            "the letters as unlike its training data. Of what it does not know, most sits in its first layer.",
            "tone": "mixed",
            "points": [
                {"label": "Calibration", "words": "ECE falls from 0.031 to 0.013.", "tone": "good"},
                {"label": "Deferral", "words": "Handing over 7% of the inputs halves the errors.", "tone": "good"},
                {"label": "Novel inputs", "words": "Letters are noticed, AUROC 0.97.", "tone": "mixed"},
                {"label": "Where", "words": "55% of the variance sits in conv1, of which little is explained.",
                 "tone": "poor"},
                {"label": "Coverage", "words": "No data to say how it fares under drift.", "tone": "unknown"},
            ],
        },
        "answers": [
            {"question": "Does uncertainty differ between layers?", "words": "Yes: by a factor of 40 between conv1 "
             "and fc3, far more than between the units of one layer.",
             "numbers": {"effect_size": 2.31, "layers": {"conv1": [0.1, 0.2], "fc3": list(range(30))}}},
            {"question": "Are large weights less uncertain?", "words": "Hardly: the rank correlation is −0.08.",
             "numbers": {"spearman": -0.08}},
        ],
        "run": {
            "versions": {"whence": "0.4.0", "torch": "2.13.0", "numpy": "2.3.0", "python": "3.11.2"},
            "platform": "Linux x86_64", "device": "cpu", "seed": 0,
            "seconds": {"fit": 1.21, "tune": 3.4, "quality": 0.8, "profile": 12.9, "pruning": 95.0},
            "posterior": {"kind": "Laplace", "describe": "Laplace(kron, ggn)", "training": None, "structure": "kron",
                          "curvature": "ggn", "prior_precision": 12.4, "data_scale": 0.84,
                          "tuned_on": "validation data", "log_evidence": -1234.5},
            "structures": structures, "covered": 0.9989,
            "not_covered": ["488 parameters of BatchNorm layers are held at their trained values"],
            "left_out": [], "notices": ["fc3: the factor was decomposed in float64."], "interrupted": None,
        },
    }  # fmt: skip


def _nodes(found: list[str], units: int, groups: int) -> list[Record]:
    nodes: list[Record] = [_node("n", None, "network", "LeNet5", None, None)]
    for i, layer in enumerate(found):
        nodes.append(_node(f"n{i}", "n", "layer", layer, layer, None))
        for u in range(units):
            nodes.append(_node(f"n{i}u{u}", f"n{i}", "unit", f"filter {u}", layer, u))
            for g in range(groups if u < units - 2 else 0):
                nodes.append(_node(f"n{i}u{u}g{g}", f"n{i}u{u}", "group", f"from channel {g}", layer, u))
        nodes.append(_node(f"n{i}uo", f"n{i}", "unit", "12 other filters", layer, None))
    return nodes


def _node(key: str, parent: str | None, level: str, label: str, layer: str | None, unit: int | None) -> Record:
    weights = {"network": 431080, "layer": 2572, "unit": 151, "group": 25}[level]
    return {
        "id": key, "parent": parent, "level": level, "label": label, "weights": weights, "layer": layer, "unit": unit
    }  # fmt: skip


def _shares(rng: np.random.Generator, nodes: list[Record], negative: bool) -> list[float]:
    """Signed shares that add up to their parent's, the early layers larger."""
    share: dict[str, float] = {"n": 1.0}
    children: dict[str, list[str]] = {}
    for node in nodes[1:]:
        children.setdefault(node["parent"], []).append(node["id"])
    for node in nodes:
        kids = children.get(node["id"], [])
        if not kids:
            continue
        if node["level"] == "network":
            heavy = rng.uniform(0.6, 1.0, len(kids)) * np.exp(-0.6 * np.arange(len(kids)))
            parts = [float(x) for x in heavy / heavy.sum()]
        else:
            parts = split(rng, share[node["id"]], len(kids), negative and node["level"] == "layer")
        share.update(zip(kids, parts, strict=True))
    return [share[node["id"]] for node in nodes]


def _profile(
    rng: np.random.Generator, found: list[str], units: int, groups: int, classes: list[str] | None,
    inputs: list[Record], ood: bool = True,
) -> Record:  # fmt: skip
    nodes = _nodes(found, units, groups)
    wanted = [("test", "set", "Test data", 540)] + [("ood", "set", "Out of distribution", 500)] * ood
    wanted += [("prior", "prior", "Prior alone", 540)]
    wanted += [(f"class:{i}", "class", f"Class {name} (54 inputs)", 54) for i, name in enumerate(classes or [])]
    wanted += [(item["view"], "input", f"{item['set'].title()} input {item['index']}", 1) for item in inputs]
    views = [_view(rng, nodes, *each) for each in wanted]
    if ood:
        views.insert(2, _difference(views[1], views[0]))
    return {
        "measure": "variance", "note": "", "prior_precision": 12.4, "residual": 1e-12, "nodes": nodes, "views": views,
        "negative": [
            {"id": node["id"], "view": view["key"], "share": share}
            for view in views[: 1 + ood]
            for node, share in zip(nodes, view["share"], strict=True)
            if share < 0 and node["level"] == "unit"
        ],
        "words": [f"{found[0]} holds most of the variance, and its data explain the least of it."],
    }  # fmt: skip


def _view(rng: np.random.Generator, nodes: list[Record], key: str, kind: str, label: str, inputs: int) -> Record:
    explained: list[float | None] = [float(x) for x in np.clip(rng.normal(0.55, 0.22, len(nodes)), -0.1, 1)]
    if kind == "prior":
        explained = [0.0] * len(nodes)
    explained[-1] = None
    return {
        "key": key, "kind": kind, "label": label, "inputs": inputs, "variance": float(rng.uniform(0.5, 9)),
        "share": _shares(rng, nodes, negative=kind != "prior"), "prior_share": [0.0] * len(nodes),
        "explained": explained,
    }  # fmt: skip


def _difference(ood: Record, test: Record) -> Record:
    explained = [
        None if a is None or b is None else a - b for a, b in zip(ood["explained"], test["explained"], strict=True)
    ]
    share = [a - b for a, b in zip(ood["share"], test["share"], strict=True)]
    label = "Out of distribution − test"
    return {"key": "difference", "kind": "difference", "label": label, "inputs": 500,
            "variance": ood["variance"] - test["variance"], "share": share, "prior_share": [0.0] * len(share),
            "explained": explained}  # fmt: skip


def _layers(rng: np.random.Generator, profile: Record, found: list[str]) -> list[Record]:
    views = {view["key"]: view for view in profile["views"]}
    rows = []
    for name in found:
        at = next(i for i, n in enumerate(profile["nodes"]) if n["level"] == "layer" and n["label"] == name)
        sets = {
            key: {
                "variance_share": views[key]["share"][at],
                "prior_share": views["prior"]["share"][at],
                "explained": views[key]["explained"][at],
            }
            if key in views
            else None
            for key in ("test", "ood")
        }
        rows.append(
            {
                "name": name, "kind": "Conv2d" if "conv" in name else "Linear", "parameters": 2572,
                "std": float(rng.uniform(0.01, 0.2)), "identified": 0.42, "identified_q05": 0.02,
                "identified_q50": 0.4, "identified_q95": 0.93, "effective_parameters": 1080.24,
                "signal_to_noise": 1.7, "disagreement": None, "structure": "kron", **sets,
            }
        )  # fmt: skip
    return rows


def _map(
    rng: np.random.Generator, layer: str, order: int, side: int = 8, most: int = 10,
    shape: tuple[int, int] | None = None,
) -> Record:  # fmt: skip
    kind = "pixels" if order == 0 else "filters" if order < 3 else "matrix"
    height, width = shape or {"pixels": (side, side), "filters": (5, 5), "matrix": (32, 64)}[kind]
    count = 1 if kind == "matrix" else most
    noise = rng.normal(size=(count, 3, height, width))
    bump = np.exp(-((np.linspace(-1, 1, height)[:, None]) ** 2 + np.linspace(-1, 1, width) ** 2) * 2)
    tiles = [
        {
            "label": "weights" if kind == "matrix" else f"filter {u}", "unit": None if kind == "matrix" else u,
            "weight": (one[0] * 0.1 * bump).tolist(), "std": (0.05 + 0.01 * np.abs(one[1]) - 0.04 * bump).tolist(),
            "identified": np.clip(bump + 0.1 * one[2], 0, 1).tolist(),
        }
        for u, one in enumerate(noise)
    ]  # fmt: skip
    note = "" if kind == "matrix" else f"{count} of 64 filters, those with the largest shares"
    return {
        "layer": layer, "kind": kind, "parameter": f"{layer}.weight", "height": height, "width": width,
        "tiles": tiles, "note": note,
    }  # fmt: skip


def _picture(rng: np.random.Generator, place: str, index: int, classes: list[str], found: list[str]) -> Record:
    y, x = np.mgrid[:8, :8]
    ring = np.abs(np.hypot(y - rng.uniform(3, 4), (x - rng.uniform(3, 4)) * rng.uniform(1, 1.6)) - 2.6)
    pixels = np.clip(255 * np.exp(-(ring**2)) + rng.normal(0, 12, (8, 8)), 0, 255).astype(int).tolist()
    top = rng.permutation(len(classes))[:3]
    probs = sorted(rng.dirichlet([3, 2, 1]).tolist(), reverse=True)
    right = None if place == "ood" else bool(index % 2)
    return {
        "set": place, "index": index, "view": f"input:{index}", "predicted": classes[top[0]],
        "target": None if right is None else classes[top[0] if right else top[1]], "correct": right,
        "uncertainty": float(rng.uniform(0.9, 1.6)), "aleatoric": 0.7, "epistemic": 0.4, "confidence": probs[0],
        "p_value": 0.0039 if place == "ood" else 0.31,
        "probs": [[classes[i], p] for i, p in zip(top, probs, strict=False)], "prediction": None, "pixels": pixels,
        "row": None, "layers": [[n, s] for n, s in zip(found, split(rng, 1.0, len(found)), strict=True)],
        "words": f"Its variance comes from {found[0]} more than that of other inputs does.",
    }  # fmt: skip


def _row(rng: np.random.Generator, index: int, features: list[str], found: list[str]) -> Record:
    return {
        "set": "test", "index": index, "view": f"input:{index}", "predicted": "1.42", "target": "1.9", "correct": None,
        "uncertainty": 0.31, "aleatoric": 0.2, "epistemic": 0.24, "confidence": None, "p_value": 0.02, "probs": None,
        "prediction": {"mean": 1.42, "std": 0.31}, "pixels": None,
        "row": [[name, float(rng.uniform(1, 7))] for name in features],
        "layers": [[n, s] for n, s in zip(found, split(rng, 1.0, len(found)), strict=True)], "words": "",
    }  # fmt: skip
