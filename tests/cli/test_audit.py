from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.utils.data import DataLoader

import whence
from tests.cli import fakes
from whence.cli import main, options, references
from whence.cli.loading import load_tokens

USUAL = ["audit", "net.py:model", "--train", "net.py:pair", "-l", "classification", "--out", "out"]


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The one line that bad input gets; nothing is written."""
    assert main(list(args)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = [line for line in captured.err.splitlines() if not line.startswith("note: ")]
    assert len(lines) == 1 and lines[0].startswith("error: "), captured.err
    assert not Path("out").exists() and not fakes.calls
    return lines[0]


def test_writes_and_says_where(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = [*USUAL, "--validation", "net.py:held", "--test", "net.py:test", "--ood", "net.py:strange"]
    more = ["--classes", "a,b, c", "--title", "T", "--layers", "first", "--layers", "last", "--structure", "diag"]
    assert main([*args, *more, "--seed", "3", "--inputs", "2", "--examples", "50", "--save", "p.safetensors"]) == 0
    captured = capsys.readouterr()
    assert "mostly right" in captured.out and "out/audit.html" in captured.out and "p.safetensors" in captured.out
    assert "[2/3] measuring its quality" in captured.err and "note: note in fit" in captured.err
    assert "note: a note from within" in captured.err and "Warning" not in captured.err
    assert sorted(p.name for p in Path("out").iterdir()) == ["audit.html", "audit.json"]
    call = fakes.calls[0]
    assert call["classes"] == ["a", "b", "c"] and call["layers"] == ["first", "last"] and call["structure"] == "diag"
    assert (call["seed"], call["inputs"], call["examples"], call["title"]) == (3, 2, 50, "T")
    assert isinstance(call["test"], DataLoader) and call["ood"].shape == (10, 4) and call["progress"] is False
    assert "curvature" not in call, "what was not asked for is left to the audit's own default"
    loaded = whence.load("p.safetensors", call["subject"])
    assert loaded.record.data_size == 32


@pytest.mark.parametrize(
    ("word", "prior"), [("relative", whence.Relative()), ("relative:10", whence.Relative(10.0)), ("0.5", 0.5)]
)
def test_the_prior(shop: Path, word: str, prior: float | whence.Relative) -> None:
    assert main([*USUAL, "--prior", word]) == 0
    assert fakes.calls[0]["prior_precision"] == prior


def test_rules_come_from_a_file(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("rules.json").write_text('{"ece": 0.02}')
    assert main([*USUAL, "--rules", "rules.json"]) == 0
    assert fakes.calls[0]["rules"] == whence.VerdictRules(ece=0.02)


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "not a JSON file"), ("[1]", "must hold an object"), ('{"ecee": 1}', "ece"), ('{"ece": -1}', "0 or more")],
)
def test_bad_rules_are_refused(shop: Path, capsys: pytest.CaptureFixture[str], text: str, words: str) -> None:
    Path("rules.json").write_text(text)
    assert words in refused(capsys, *USUAL, "--rules", "rules.json")


def test_units_and_levels(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*USUAL, "--unit", "kW", "--levels", "0.8, 0.99"]) == 0
    assert fakes.calls[0]["unit"] == "kW" and fakes.calls[0]["levels"] == [0.8, 0.99]
    assert options.parse_unit("m, kg") == ["m", "kg"] and options.parse_unit(None) is None
    for word in ("90", "0.9,", "x", "-0.5"):
        with pytest.raises(whence.errors.BadOption, match="--levels: expected numbers between 0 and 1"):
            options.parse_levels(word)


def test_the_positive_class_and_the_conformal_score(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "absolute" in refused(capsys, *USUAL, "--conformal-score", "none")
    assert main([*USUAL, "--positive", "cat", "--conformal-score", "cumulative", "--quiet"]) == 0
    assert fakes.calls[0]["positive"] == "cat" and fakes.calls[0]["conformal_score"] == "cumulative"
    assert [options.parse_positive(word) for word in ("0", "1", "ill", None)] == [0, 1, "ill", None]
    assert main([*USUAL, "--quiet"]) == 0
    assert "positive" not in fakes.calls[1] and "conformal_score" not in fakes.calls[1]


def test_tokens_by_reference_or_from_a_file(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (shop / "words.py").write_text(
        "words = ['<s>', 'a']\n\n"
        "class Tokenizer:\n    def convert_ids_to_tokens(self, ids): return list(map(str, ids))\n\n"
        "def decode(ids): return ['?' for _ in ids]\n\ndef made(): return words\n\nnumber = 3\n"
    )
    (shop / "vocab.json").write_text('{"<s>": 0, "b": 2}')
    (shop / "vocab.txt").write_text("<s>\nc\n")
    wanted: dict[str, Any] = {
        "words.py:words": ["<s>", "a"],
        "words.py:made": ["<s>", "a"],
        "vocab.json": ["<s>", "<1>", "b"],
        "vocab.txt": ["<s>", "c"],
    }
    for given, tokens in wanted.items():
        assert load_tokens(given) == tokens
    assert load_tokens("words.py:Tokenizer").convert_ids_to_tokens([1]) == ["1"]
    assert load_tokens("words.py:decode")([1, 2]) == ["?", "?"]
    capsys.readouterr()
    assert "--tokens: expected a tokenizer" in refused(capsys, *USUAL, "--tokens", "words.py:number")
    assert "--tokens none.txt: expected a vocabulary file" in refused(capsys, *USUAL, "--tokens", "none.txt")
    assert main([*USUAL, "--tokens", "vocab.txt", "--quiet"]) == 0 and fakes.calls[0]["tokens"] == ["<s>", "c"]


def test_references_of_every_kind(shop: Path) -> None:
    base = ["--likelihood", "classification", "--out", "out", "--quiet"]
    for model in ("net.py:Net", "net:model", "net.py:Holder.inner", f"{shop}/net.py:model"):
        for train in ("net.py:dataset", "net:loader", "net.py:pair", "net.py:test"):
            assert main(["audit", model, "--train", train, "--batch-size", "7", *base]) == 0
    assert fakes.calls[0]["train"].batch_size == 7
    assert references.resolve("net:x", "") is references.resolve(f"{shop}/net.py:x", ""), "imported once"


def test_a_class_is_said_to_be_new(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "net.py:Net", "--train", "net.py:pair", "-l", "classification"]) == 0
    assert "pass trained weights with --weights" in capsys.readouterr().err
    assert Path("whence-audit/audit.html").is_file()


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("gaussian:0.3", whence.Gaussian),
        ("poisson", whence.Poisson),
        ("heteroscedastic", whence.HeteroscedasticGaussian),
    ],
)
def test_likelihoods(shop: Path, word: str, kind: type) -> None:
    Path("reg.py").write_text(
        "import torch\nmodel = torch.nn.Linear(2, 2)\nx = torch.randn(9, 2)\n"
        f"train = (x, x[:, :{1 if kind is whence.HeteroscedasticGaussian else 2}].abs().round())\n"
    )
    assert main(["audit", "reg.py:model", "--train", "reg.py:train", "-l", word, "--quiet"]) == 0
    assert isinstance(fakes.calls[0]["likelihood"], kind)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"MODEL": "nowhere.at.all:model"}, "there is no module 'nowhere'"),
        ({"MODEL": "lost.py:model"}, "there is no file lost.py"),
        ({"MODEL": "net.py:modle"}, "net.py has no 'modle'. Did you mean 'model'?"),
        ({"MODEL": "net.py:Holder.iner"}, "net.py:Holder has no 'iner'. Did you mean 'inner'?"),
        ({"MODEL": "net.py"}, "expected MODULE:NAME, such as"),
        ({"MODEL": "net.py:x"}, "expected a torch.nn.Module, but net.py:x is a Tensor"),
        ({"MODEL": "net.py:words"}, "expected a torch.nn.Module, but net.py:words() returned a str"),
        ({"MODEL": "net.py:needs"}, "cannot be called without arguments (it needs path)"),
        ({"MODEL": "net.py:breaks"}, "calling net.py:breaks() failed: RuntimeError: no such file"),
        ({"--train": "net.py:words"}, "expected a DataLoader, a Dataset, a pair"),
        ({"--train": "net.py:x"}, "net.py:x is a Tensor"),
        ({"--train": "net.py:strings"}, "--train net.py:strings: batch 0 is a str. A batch is (inputs, targets)"),
        (
            {"--train": "net.py:stringly"},
            "--train net.py:stringly: batch 0 is a list of length 1. A batch is (inputs, targets)",
        ),
        ({"--train": "net.py:triples"}, "batch 0 is a tuple of length 3"),
        ({"--train": "net.py:single"}, "expected batches (inputs, targets), but there are no targets"),
        ({"--train": "net.py:short"}, "5 inputs but 4 targets"),
        ({"--train": "net.py:empty"}, "--train net.py:empty is empty: it yielded no example"),
        ({"--train": "net.py:once"}, "can be read only once"),
        ({"--train": "net.py:far"}, "--train net.py:far: "),
        ({"--train": "net.py:wide_pair"}, "(the first layer, first (Linear), takes inputs that end in 4 features)"),
        (
            {"--ood": "net.py:wide"},
            "--ood net.py:wide: the network fails on inputs of shape [1, 7] (the training inputs are of shape [4]",
        ),
        ({"--test": "net.py:wide_pair"}, "--test net.py:wide_pair: the network fails on inputs of shape [1, 7]"),
        ({"-l": "clasification"}, "Did you mean 'classification'?"),
        ({"-l": "gaussian:x"}, "expected gaussian:NOISE"),
        ({"--classes": "a,b"}, "expected 3 names, one for each output of the network, but got 2"),
        ({"--classes": "a"}, "expected comma-separated names"),
        ({"--device": "cuda"}, "--device: cuda was requested"),
        ({"--device": "toaster"}, "--device: expected cpu, cuda"),
        ({"--out": "net.py/below"}, "expected a folder that can be written, but got net.py/below: it is not a folder"),
        ({"--out": "net.py"}, "expected a folder that can be written"),
        ({"--save": "missing/p.safetensors"}, "there is no folder missing"),
        ({"--weights": "missing.pt"}, "there is no file missing.pt"),
        ({"--examples": "0"}, "Invalid value for '--examples'"),
        ({"--structure": "kroon"}, "is not one of 'kron'"),
        ({"--prior": "relative:-1"}, "expected relative, relative:TAU or a number above 0, but got 'relative:-1'"),
        ({"--prior": "strong"}, "expected relative, relative:TAU or a number above 0, but got 'strong'"),
        ({"--posterior": "p.safetensors"}, "--likelihood cannot be combined with --posterior"),
    ],
)
def test_bad_input_gets_one_line(shop: Path, capsys, change: dict[str, str], words: str) -> None:
    if "cuda" in change.values() and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    options = {"--train": "net.py:pair", "-l": "classification", "--out": "out", **change}
    model = options.pop("MODEL", "net.py:model")
    assert words in refused(capsys, "audit", model, *(part for pair in options.items() for part in pair))


def test_modules_that_break(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("needy.py").write_text("import surely_missing")
    Path("leaves.py").write_text("raise SystemExit(3)")
    for name in ("needy.py", "needy"):
        line = refused(capsys, "audit", f"{name}:m", "--train", "net.py:pair", "-l", "binary", "--out", "out")
        assert f"importing {name} failed: ModuleNotFoundError: No module named 'surely_missing'" in line
    line = refused(capsys, "audit", "leaves:m", "--train", "net.py:pair", "-l", "binary", "--out", "out")
    assert "ended the program" in line


def test_missing_options(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--train is missing" in refused(capsys, "audit", "net.py:model", "--out", "out")
    assert "Missing argument 'MODULE:MODEL'" in refused(capsys, "audit")
    assert "Did you mean 'audit'?" in refused(capsys, "audti")


def test_weights(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(5)
    wanted = {"first.weight": torch.randn(8, 4), "first.bias": torch.randn(8), "last.weight": torch.randn(3, 8)}
    wanted["last.bias"] = torch.randn(3)
    torch.save(wanted, "plain.pt")
    torch.save({"epoch": 3, "state_dict": {f"module.{k}": v for k, v in wanted.items()}}, "nested.pth")
    save_file(wanted, "plain.safetensors")
    for name in ("plain.pt", "nested.pth", "plain.safetensors"):
        assert main(["audit", "net.py:Net", *USUAL[2:], "--quiet", "--weights", name]) == 0
        assert torch.equal(fakes.calls[-1]["subject"].first.weight, wanted["first.weight"])


def test_weights_that_do_not_fit(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"first.weight": torch.zeros(8, 5), "other": torch.zeros(1)}, "bad.pt")
    line = refused(capsys, *USUAL, "--weights", "bad.pt")
    assert "missing from the file: first.bias, last.weight, last.bias" in line and "not in the network: other" in line
    assert "first.weight is [8, 5] in the file and [8, 4] in the network" in line
    torch.save(torch.nn.Linear(2, 2), "module.pt")
    assert "contains more than tensors" in refused(capsys, *USUAL, "--weights", "module.pt")
    torch.save({"epoch": 3}, "nothing.pt")
    assert "expected a state dict" in refused(capsys, *USUAL, "--weights", "nothing.pt")
    for name in ("noise.pt", "noise.safetensors"):
        Path(name).write_bytes(b"noise")
        assert name in refused(capsys, *USUAL, "--weights", name)


def test_posterior_instead_of_a_fit(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*USUAL, "--quiet", "--save", "p.safetensors"]) == 0
    fakes.calls.clear()
    args = ["audit", "net.py:model", "--posterior", "p.safetensors", "--test", "net.py:test", "--out", "out"]
    assert main([*args, "--quiet"]) == 0
    assert isinstance(fakes.calls[0]["subject"], whence.Laplace) and fakes.calls[0]["train"] is None
    assert main([*USUAL, "--weights", "p.safetensors"]) == 2
    assert "is a posterior, not a network's weights; pass it with --posterior" in capsys.readouterr().err


def test_existing_files_survive_a_failure(shop: Path, capsys, monkeypatch) -> None:
    Path("out").mkdir()
    Path("out/audit.json").write_text("old")
    monkeypatch.setenv("WHENCE_FAIL", "1")
    assert main(USUAL) == 1
    assert "unexpected error: ZeroDivisionError: it broke. Run again with --debug" in capsys.readouterr().err
    assert [p.name for p in Path("out").iterdir()] == ["audit.json"] and Path("out/audit.json").read_text() == "old"


def test_errors_have_a_traceback_only_with_debug(shop: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("WHENCE_FAIL", "1")
    assert main(USUAL) == 1
    said = capsys.readouterr().err
    assert "Traceback" not in said and "ZeroDivisionError: it broke" in said
    assert not Path("out").exists(), "the folder that was made for it is gone again"
    assert main([*USUAL, "--debug", "--device", "nothing"]) == 2
    said = capsys.readouterr().err
    assert "Traceback" in said and said.splitlines()[-1].startswith("error: ")


def test_quiet_and_open(shop: Path, capsys, monkeypatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert main([*USUAL, "--quiet", "--open"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == "a print from user code\n"
    assert opened[0].startswith("file:///") and opened[0].endswith("out/audit.html")


def test_json_in_process(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*USUAL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["html"] == "out/audit.html" and found["verdict"]["tone"] == "mixed" and found["interrupted"] is None
    assert found["metrics"]["nll"] == {"plain": 0.5, "bayesian": 0.4, "difference": -0.1}


def test_a_page_that_cannot_be_drawn_leaves_the_record(shop: Path, capsys, monkeypatch) -> None:
    def missing(self: object, path: Path) -> Path:
        raise whence.errors.MissingExtra("this needs jinja: pip install 'whence[report]'")

    monkeypatch.setattr(fakes.FakeAudit, "html", missing)
    assert main(USUAL) == 0
    captured = capsys.readouterr()
    assert "the page was not written: this needs jinja" in captured.err and "out/audit.json" in captured.out
