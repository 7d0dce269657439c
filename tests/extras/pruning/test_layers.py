"""Whole layers are pruned where a path leads around them; the relative curvature ranks units and layers by the mean."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.extras.pruning.cases import fitted, masks, mlp, scores
from whence.errors import BadOption, NothingSelected, Notice
from whence.extras.pruning import criteria as pruning
from whence.extras.pruning.masks import Pieces, PruningPlan, prune


class Residual(nn.Module):
    """x + second(relu(norm(first(x)))), with a head; ``first`` and ``second`` have a path around them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 3, 3, padding=1)
        self.first, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)
        self.second, self.head = nn.Conv2d(3, 3, 3, padding=1), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.second(torch.relu(self.norm(self.first(x))))
        return self.head(x.mean((2, 3)))


def residual() -> tuple[Residual, whence.Laplace, Tensor]:
    torch.manual_seed(0)
    model, x = Residual().double().eval(), torch.randn(20, 1, 5, 5, dtype=torch.float64)
    model.norm.running_mean.add_(0.3)
    model.norm.bias.data.add_(0.5)
    return model, fitted(model, "kron", (x, torch.arange(20) % 2)), x


def test_whole_layers_go_where_a_path_leads_around_them() -> None:
    model, posterior, x = residual()
    plan = PruningPlan.make(posterior, Pieces.LAYERS)
    smaller = min(plan.names, key=lambda name: float(model.get_parameter(name).abs().mean()))
    pruned = masks(prune(posterior, 0.5, by="magnitude", units="layers"))
    assert {name for name in plan.names if not pruned[f"{name}_mask"].any()} == {smaller}
    both = prune(posterior, 0.99, by="magnitude", units="layers")
    assert torch.allclose(both(x), model.head(model.stem(x).mean((2, 3))), atol=1e-12)  # the path around
    assert not masks(both)["norm.weight_mask"].any()  # a normalisation of nothing adds nothing


def test_layers_without_a_path_around_them_are_not_candidates() -> None:
    posterior = fitted(mlp())
    with pytest.raises(NothingSelected, match="no longer depend on the inputs"):
        prune(posterior, 0.5, units="layers")
    assert {name.split(".")[0] for name in PruningPlan.make(residual()[1], Pieces.LAYERS).names} == {"first", "second"}


def test_tokens_have_gradients_in_their_table() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.inner, self.head = nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.table(x)
            return self.head((x + self.inner(x)).mean(1))

    x = torch.randint(5, (12, 3))
    posterior = fitted(Tokens().double(), "kron", (x, torch.arange(12) % 2))
    with pytest.warns(Notice, match=r"table.weight \(Embedding\)"):
        assert PruningPlan.make(posterior, Pieces.LAYERS).names == ["inner.weight"]


@pytest.mark.parametrize("by", ["saliency", "relative_curvature", "snr"])
def test_layers_are_ranked_by_the_sum_or_the_mean_of_their_weights(by: str) -> None:
    _, posterior, _ = residual()
    plan = PruningPlan.make(posterior, Pieces.LAYERS)
    single = scores(posterior, plan.names, by)
    for name, found in plan.scores(pruning.CRITERIA[by]).items():
        wanted = single[name].sum() if by == "saliency" else single[name].mean()
        assert float(found) == pytest.approx(float(wanted))


def test_the_relative_curvature_ranks_weights_as_saliency_does_and_units_by_the_mean() -> None:
    posterior = fitted(mlp())
    names = ["0.weight", "2.weight"]
    one, other = (scores(posterior, names, by) for by in ("saliency", "relative_curvature"))
    for name in names:
        assert torch.allclose(one[name], 0.5 * 40 * other[name])  # N = 40
    plan = PruningPlan.make(posterior, Pieces.UNITS)
    found = plan.scores(pruning.CRITERIA["relative_curvature"])
    assert torch.allclose(found["0.weight"], other["0.weight"].mean(1))


def test_what_is_pruned_as_one_is_checked() -> None:
    with pytest.raises(BadOption, match="units"):
        prune(fitted(mlp()), 0.5, units="rows")  # type: ignore[arg-type]
    trained = whence.Variational.of(whence.VariationalModule(mlp()), whence.Categorical())
    with pytest.raises(BadOption, match="no stored example"):
        prune(trained, 0.5, units="layers")


def test_whole_layers_of_a_variational_posterior() -> None:
    model, _, x = residual()
    posterior = whence.variational(
        model, (x, torch.arange(20) % 2), likelihood="classification", epochs=1, seed=0, progress=False
    )
    assert set(PruningPlan.make(posterior, Pieces.LAYERS).names) == {"first.weight", "second.weight"}
    pruned = prune(posterior, 0.99, by="snr", units="layers")
    kept = posterior.network.module
    assert torch.allclose(pruned(x), kept.head(kept.stem(x).mean((2, 3))), atol=1e-12)  # type: ignore[operator]
