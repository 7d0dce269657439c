from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import whence
from whence.cli import main, references
from whence.numerals import percent

ARGS = ["prune", "p.safetensors", "net.py:model", "--fraction", "0.5", "--out", "small.safetensors"]


@pytest.fixture
def posterior(shop: Path) -> whence.Laplace:
    model, data = references.model("net.py:model"), references.resolve("net.py:pair", "--train")
    found = whence.laplace(model, data, likelihood="classification", progress=False)
    found.save("p.safetensors")
    return found


def test_weights_are_those_of_prune(posterior: whence.Laplace, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ARGS, "--by", "magnitude", "--test", "net.py:test", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    network = references.made("net.py:Net", "MODEL", lambda v: isinstance(v, nn.Module), "a network")
    network.load_state_dict(load_file("small.safetensors"))
    wanted, x = whence.prune(posterior, 0.5, by="magnitude"), torch.randn(20, 4)
    assert torch.equal(network(x), wanted(x))
    zeros = sum(int((p == 0).sum()) for p in network.parameters())
    assert told["parameters"] == told["parameters_before"] - zeros and zeros == 28
    assert (told["masked"], told["prunable"]) == (28, 56) and 0 < told["sparsity"] < 0.5
    row = whence.prune_curve(
        posterior, references.resolve("net.py:dataset", "").tensors, fractions=(0, 0.5), by="magnitude", progress=False
    ).rows
    assert told["before"]["nll"] == pytest.approx(row[0].nll) and told["after"]["nll"] == pytest.approx(row[1].nll)


def test_both_shares_are_told(posterior: whence.Laplace, capsys: pytest.CaptureFixture[str]) -> None:
    """Of what can be pruned, and of all parameters."""
    assert main([*ARGS, "--by", "magnitude"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "28 of the 56 parameters that can be pruned (50%), by magnitude" in out
    total = sum(p.numel() for p in posterior.network.params.values())
    assert f"{total} → {total - 28}: {percent(28 / total)} fewer, as biases and others are not pruned" in out


def test_compact(posterior: whence.Laplace, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ARGS, "--units", "--compact"]) == 0
    out = capsys.readouterr().out
    state = load_file("small.safetensors")
    assert list(state["first.weight"].shape) == [4, 4] and "[4, 4]" in out and "parameters" in out
    small = whence.compact(whence.prune(posterior, 0.5, units=True))
    assert all(torch.equal(value, state[name]) for name, value in small.state_dict().items())


def test_curve(posterior: whence.Laplace, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ARGS[:3], "--curve", "--test", "net.py:test"]) == 0
    out = capsys.readouterr().out
    assert "saliency" in out and "0.99" in out and "accuracy" in out
    assert not Path("small.safetensors").exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (ARGS[:3], "--fraction is missing"),
        (ARGS[:5], "--out is missing"),
        ([*ARGS, "--fraction", "1"], "is not in [0, 1)"),
        ([*ARGS, "--compact"], "--compact needs --units"),
        ([*ARGS, "--curve"], "--curve needs --test"),
        ([*ARGS, "--test", "net.py:wide_pair"], "--test net.py:wide_pair: the network fails on inputs of shape [1, 7]"),
        ([*ARGS, "--layers", "nothing*"], "nothing*"),
        ([*ARGS[:6], "missing/small.safetensors"], "there is no folder missing"),
        (["prune", "none.safetensors", *ARGS[2:]], "there is no file none.safetensors"),
        (["prune", "net.py", *ARGS[2:]], "net.py is not a readable safetensors file"),
        (["prune", "p.safetensors", "net.py:Net", *ARGS[3:], "--seed", "9"], "same shapes but other weights"),
    ],
)
def test_bad_input_gets_one_line(posterior: whence.Laplace, capsys, args: list[str], words: str) -> None:
    assert main(args) == 2
    captured = capsys.readouterr()
    assert words in captured.err and captured.err.splitlines()[-1].startswith("error: ") and captured.out == ""
    assert not Path("small.safetensors").exists() and not list(Path().glob(".*.tmp"))
