"""One task by one method: quality, and error against uncertainty on test images."""

from __future__ import annotations

import math
import warnings
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import whence
from reproductions.bayesian_cnn.superresolution import images
from reproductions.bayesian_cnn.superresolution.config import Config, Task
from reproductions.bayesian_cnn.superresolution.images import Pair
from reproductions.experiment import Context
from reproductions.store import Results, Values
from whence import zoo
from whence.engine.files import digest_of_values, read_tensors, write_tensors
from whence.functional import load_tensors, tensors_of

Sets = dict[str, Pair]
SHARED = 16  # test images behind the shares of layers


def run(config: Config, results: Results, context: Context) -> None:
    for task in config.tasks:
        for method in config.methods:
            for seed in task.seeds if method != "bicubic" else (0,):
                work = partial(one, config, task, method, seed, context)
                results.unit(f"{task.name}/{method}/{seed}", work)


def one(config: Config, task: Task, method: str, seed: int, context: Context) -> Values:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", whence.errors.Notice)
        sets = images.pairs(task, seed, config.validation, config.test, context.device)
        mean, std, noise, more = METHODS[method](config, task, sets, seed, context)
    high = sets["test"][1]
    error = mean - high
    found: Values = {"psnr": images.psnr(mean, high), "ssim": images.ssim(mean, high), **more}
    if noise is not None and method in WITH_VARIANCE:
        found["nll"] = nll(mean, std.square() + noise**2, high)
    if method != "bicubic":
        found |= {
            "correlation": images.correlation(error.abs(), std), "ause": images.ause(error, std),
            "curve": images.sparsification(error, std), "oracle": images.sparsification(error, error.abs()),
        }  # fmt: skip
    if seed == 0:
        kept = slice(0, config.mapped)
        shown = {"low": sets["test"][0], "high": high, "mean": mean}
        found["maps"] = {name: bytes_of(images_[kept]) for name, images_ in shown.items()}
        found["maps"]["std"] = (1e4 * std[kept].mean(1)).round().int().tolist()
    return found


def bytes_of(values: Tensor) -> list[Any]:
    return (255 * values.clamp(0, 1)).round().int().tolist()


def nll(mean: Tensor, variance: Tensor, high: Tensor) -> float:
    """Mean over pixels of the Gaussian negative log likelihood."""
    each = 0.5 * ((high - mean).double().square() / variance + (2 * math.pi * variance.double()).log())
    return float(each.mean())


Fit = tuple[Tensor, Tensor, float | None, Values]  # mean, standard deviation (or what stands for it), noise, more


def bicubic(config: Config, task: Task, sets: Sets, seed: int, context: Context) -> Fit:
    mean = images.bicubic(sets["test"][0], task.factor)
    return mean, torch.zeros_like(mean), None, {}


def trained(
    config: Config, task: Task, sets: Sets, seed: int, context: Context, dropout: float = 0.0
) -> tuple[nn.Module, float, Values]:
    """The network with the least squared error on validation data, and the root of that error."""
    found = []
    for rate in config.rates:
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            network = images.espcn(task, config.width, dropout).to(context.device)
        described = [asdict(task) | {"seeds": ()}, config.width, config.epochs, config.validation, dropout, rate, seed]
        kept = context.cache / f"bcnn-{task.name}-{digest_of_values(described)[:20]}.safetensors"
        if kept.exists():
            load_tensors(network, read_tensors(kept)[0])
            network.eval()
        else:
            zoo.train(
                network, sets["train"], epochs=config.epochs, optimiser="adam", lr=rate, schedule="cosine", seed=seed,
                batch_size=64, device=context.device, progress=False, capture=context.device.startswith("cuda"),
            )  # fmt: skip
            context.cache.mkdir(parents=True, exist_ok=True)
            write_tensors(kept, tensors_of(network), {})
        x, y = sets["validation"]
        with torch.no_grad():
            loss = float((network(x) - y).double().square().mean().sqrt())
        found.append((loss, rate, network))
    loss, rate, network = min(found, key=lambda row: row[0])
    return network, loss, {"lr": rate}


def plain(config: Config, task: Task, sets: Sets, seed: int, context: Context) -> Fit:
    """Uncertainty is where edges are: the gradient of the reconstruction, which needs no posterior."""
    network, noise, more = trained(config, task, sets, seed, context)
    with torch.no_grad():
        mean = network(sets["test"][0])
    return mean, images.slope(mean), noise, more | {"parameters": sum(p.numel() for p in network.parameters())}


def predicted(posterior: Any, x: Tensor, config: Config, seed: int, **options: Any) -> tuple[Tensor, Tensor]:
    """Mean and epistemic standard deviation."""
    generator = torch.Generator().manual_seed(seed)
    found = posterior.predict(x, num_samples=config.draws, generator=generator, **options)
    return found.mean.reshape(len(x), *found.mean.shape[1:]), found.epistemic.sqrt()


def preferred(posteriors: list[tuple[Any, Values]], sets: Sets, config: Config, noise: float, seed: int) -> Any:
    """The least negative log likelihood of validation pixels."""
    x, y = sets["validation"]
    scored = []
    for posterior, about in posteriors:
        mean, std = predicted(posterior, x, config, seed)
        scored.append((nll(mean, std.square() + noise**2, y), posterior, about))
    return min(scored, key=lambda row: row[0])[1:]


def dropout(config: Config, task: Task, sets: Sets, seed: int, context: Context) -> Fit:
    made = []
    for p in config.dropout:
        network, noise, more = trained(config, task, sets, seed, context, p)
        made.append((whence.dropout(network, likelihood=whence.Gaussian(noise)), more | {"dropout": p, "noise": noise}))
    noise = min(about["noise"] for _, about in made)
    posterior, about = preferred(made, sets, config, noise, seed)
    mean, std = predicted(posterior, sets["test"][0], config, seed)
    return mean, std, noise, about


def variational(config: Config, task: Task, sets: Sets, seed: int, context: Context) -> Fit:
    network, noise, more = trained(config, task, sets, seed, context)
    made = []
    for weight in config.kl_weights:
        posterior = whence.variational(
            network, sets["train"], likelihood=whence.Gaussian(noise), epochs=config.variational_epochs, lr=1e-3,
            lr_std=1e-2, kl_weight=weight, batch_size=64, prior_precision=10.0, seed=seed, progress=False,
        )  # fmt: skip
        made.append((posterior, more | {"kl_weight": weight}))
    posterior, about = preferred(made, sets, config, noise, seed)
    mean, std = predicted(posterior, sets["test"][0], config, seed)
    return mean, std, noise, about


def laplace(config: Config, task: Task, sets: Sets, seed: int, context: Context) -> Fit:
    """Kronecker factors, tuned on validation data; shares of the layers at edges and elsewhere."""
    network, noise, more = trained(config, task, sets, seed, context)
    generator = torch.Generator().manual_seed(seed)
    x, y = sets["train"]
    posterior = whence.laplace(
        network, (x[:2000], y[:2000]), likelihood=whence.Gaussian(noise), curvature="mc", generator=generator,
        data_size=len(x), progress=False,
    )  # fmt: skip
    few = min(100, config.validation)
    held = tuple(part[:few] for part in sets["validation"])
    posterior = posterior.tune(held, progress=False, reference=False)
    mean, std = predicted(posterior, sets["test"][0], config, seed)
    with torch.no_grad():
        mean = network(sets["test"][0])
    return mean, std, noise, more | {"where": regions(posterior, sets["test"][0][:SHARED], mean[:SHARED])}


def regions(posterior: whence.Laplace, x: Tensor, mean: Tensor) -> Values:
    """Shares of the layers, and how much they explain, at the steepest fifth of the pixels and elsewhere."""
    steep = images.slope(mean)
    bound = steep.flatten(1).quantile(0.8, dim=1).view(-1, 1, 1, 1)
    found: Values = {}
    for name, mask in (("edges", steep >= bound), ("elsewhere", steep < bound)):
        rows = posterior.where(x, at=mask).layers
        found[name] = {row.name: [row.variance_share, row.prior_share, row.explained] for row in rows}
    return found


METHODS = {"bicubic": bicubic, "plain": plain, "dropout": dropout, "variational": variational, "laplace": laplace}
WITH_VARIANCE = ("dropout", "variational", "laplace")
