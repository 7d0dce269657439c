# %% [markdown]
# # Pruning
#
# How much of a network can be removed, by which criterion, and what happens to its probabilities? The fraction is chosen on validation data, and what it costs is measured once, on test data.

# %% tags=["parameters"]
dataset = "fashion-mnist"
train_size, test_size = 8_000, 3_000
epochs = 10
fractions = (0, 0.5, 0.7, 0.8, 0.9, 0.95)

# %%
import torch
from torch import nn

import whence
from whence import metrics, zoo
from whence.report import figures

torch.manual_seed(0)
data = zoo.load(dataset, seed=0)
train, validation, test = data.train.take(train_size), data.validation.take(test_size), data.test.take(test_size)
side = data.shape[-1] // 4
network = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    nn.Linear(32 * side**2, 64), nn.ReLU(), nn.Linear(64, 10),
)  # fmt: skip
zoo.train(
    network, train, validation=validation, epochs=epochs, lr=0.05, batch_size=64, schedule="cosine", progress=False
)
posterior = whence.laplace(network, train, likelihood="classification", structure="diag", progress=False)
posterior = posterior.tune(validation, progress=False)
x, y = test.tensors()
print("accuracy", metrics.accuracy(network(x).softmax(1), y))

# %% [markdown]
# ## Single weights
#
# `prune_curve` masks the least needed weights by each criterion, and scores the masked network. Signal to noise is |w| over its posterior standard deviation.

# %%
curve = whence.prune_curve(
    posterior, validation, fractions=fractions, by=["snr", "saliency", "magnitude", "random"], progress=False
)
figures.pruning(curve)

# %% [markdown]
# Choose the largest fraction whose validation accuracy is at most one percentage point below that of the whole network.

# %%
table = curve.to_pandas()
print(table.pivot(index="fraction", columns="by", values="accuracy").round(3))
whole = table[table.fraction == 0].accuracy.max()
allowed = table[(table.accuracy >= whole - 0.01) & (table.by != "random")]
by, fraction = allowed.sort_values(["fraction", "accuracy"]).iloc[-1][["by", "fraction"]]
print(f"prune {fraction:.0%} of the weights by {by}")

# %%
sparse = whence.prune(posterior, float(fraction), by=by)
with torch.no_grad():
    before, after = network(x).softmax(1), sparse(x).softmax(1)
right_before, right_after = (before.argmax(1) == y).double(), (after.argmax(1) == y).double()
difference = right_after - right_before
error = difference.std() / len(difference) ** 0.5
print(f"test accuracy {right_before.mean():.2%} → {right_after.mean():.2%}")
print(f"paired difference {difference.mean():+.2%} ± {1.96 * error:.2%}")
print("ECE", metrics.ece(before, y), "→", metrics.ece(after, y))

# %% [markdown]
# ## Whole units
#
# Masked weights save no time on usual hardware. Removing whole filters and rows does: `compact` makes a smaller dense network that computes the same as the masked one.

# %%
units = whence.prune_curve(
    posterior, validation, fractions=(0, 0.1, 0.2, 0.3, 0.4, 0.5), units=True,
    by=["relative_curvature", "saliency", "magnitude", "random"], progress=False,
)  # fmt: skip
figures.pruning(units)

# %%
table = units.to_pandas()
print(table.pivot(index="fraction", columns="by", values="accuracy").round(3))
whole = table[table.fraction == 0].accuracy.max()
allowed = table[(table.accuracy >= whole - 0.01) & (table.by != "random")]
by, fraction = allowed.sort_values(["fraction", "accuracy"]).iloc[-1][["by", "fraction"]]
small = whence.compact(whence.prune(posterior, float(fraction), by=by, units=True))
with torch.no_grad():
    thin = small(x).softmax(1)
size = [sum(p.numel() for p in net.parameters()) for net in (network, small)]
difference = (thin.argmax(1) == y).double() - right_before
error = difference.std() / len(difference) ** 0.5
print(f"remove {fraction:.0%} of the units by {by}: {size[0]:,} weights → {size[1]:,}")
print(f"test accuracy, paired difference {difference.mean():+.2%} ± {1.96 * error:.2%}")
print("ECE", metrics.ece(thin, y))

# %% [markdown]
# A little training brings back what pruning cost. The small network is a plain module, so it is trained as any other; for a fair comparison the whole network is trained as much again.

# %%
again = {"small": small, "whole": network}
for net in again.values():
    zoo.train(net, train, validation=validation, epochs=2, lr=0.005, batch_size=64, progress=False)
with torch.no_grad():
    right = {name: (net(x).argmax(1) == y).double() for name, net in again.items()}
difference = right["small"] - right["whole"]
error = difference.std() / len(difference) ** 0.5
print(f"small {right['small'].mean():.2%}, whole {right['whole'].mean():.2%}")
print(f"paired difference {difference.mean():+.2%} ± {1.96 * error:.2%}")

# %% [markdown]
# ## Decision
#
# **Remove 30% of the units by magnitude, and train the small network for two more epochs.**
#
# - Half of the weights go (105,866 become 52,180), in a plain dense network. Its accuracy differs by −0.23% ± 0.31% from that of the whole network, which is not significant; after two epochs of training for both it is 88.20% in both cases.
# - Single weights can be masked much further: 80% by magnitude cost 0.47% ± 0.46%. That saves memory in a compressed file, and no time on usual hardware.
# - **Magnitude wins here**, and by a wide margin: at 95% it keeps 0.830, saliency 0.640 and signal to noise 0.619. The posterior's criteria are no better an order to prune by on this network, so compare before you choose, with `prune_curve`. Removing weights at random destroys the network at 50%.
# - The probabilities did not get worse: the ECE is 0.0458 before, 0.0441 after.
