# %% [markdown]
# # Novelty in production
#
# A network that reads digits is deployed. Some day the scanner has a dead column, or someone feeds it letters. The network will answer anyway. This tutorial sets up an alarm that needs no examples of what may go wrong, measures how often it is wrong, and packs it into the module that is served.

# %% tags=["parameters"]
dataset, others = "mnist", ["notmnist", "kmnist"]
train_size, test_size = 12_000, 2_000
epochs = 8

# %%
import torch

import whence
from whence import metrics, zoo

torch.manual_seed(0)
data = zoo.load(dataset, seed=0)
train, validation, test = data.train.take(train_size), data.validation.take(test_size), data.test.take(test_size)
x, y = test.tensors()
network = zoo.mlp(data.shape, 10, hidden=(128, 128))
zoo.train(network, train, validation=validation, epochs=epochs, lr=0.03, batch_size=64, progress=False)
posterior = whence.laplace(network, train, likelihood="classification", progress=False)
posterior = posterior.tune(validation, progress=False)
print("accuracy", metrics.accuracy(posterior.predict(x), y))

# %% [markdown]
# ## A reference
#
# What "usual" means is learned from validation inputs: inputs that the network was not trained on. `flag(0.01)` then flags 1% of usual inputs, by construction. Check that on the test data first.

# %%
reference = whence.reference_of(posterior, validation)
usual = whence.novelty(posterior, x, reference=reference)
print(f"flagged among usual inputs: {usual.flag(0.01).double().mean():.1%} (1% is intended)")

# %% [markdown]
# ## What could go wrong
#
# Two things that were not prepared for: other characters, and a broken scanner.

# %%
side = data.shape[-1]
dark = x.clone()
dark[..., side // 2 : side // 2 + 2] = x.max()
generator = torch.Generator().manual_seed(0)
faults = {
    "two dead columns": dark,
    "upside down": x.flip(-2),
    "noise": x + 0.5 * torch.randn(x.shape, generator=generator),
    "half the contrast": x.min() + 0.5 * (x - x.min()),
}
for name in others:
    faults[name] = zoo.load(name, test_only=True).test.like(data.train).take(test_size).tensors()[0]
known = posterior.predict(x).entropy
for name, inputs in faults.items():
    found = whence.novelty(posterior, inputs, reference=reference)
    novel = torch.arange(len(x) + len(inputs)) >= len(x)
    entropy = metrics.auroc(torch.cat([known, posterior.predict(inputs).entropy]), novel, resamples=0)
    score = metrics.auroc(torch.cat([usual.score, found.score]), novel, resamples=0)
    flagged = found.flag(0.01).double().mean()
    print(f"{name:18} flagged {flagged:6.1%}   AUROC: novelty {float(score):.3f}, entropy {float(entropy):.3f}")

# %% [markdown]
# Which layer notices? The p-value of each layer says so, and `words` puts it into a sentence.

# %%
for name, inputs in faults.items():
    found = whence.novelty(posterior, inputs[:200], reference=reference)
    rates = (found.p_values <= 0.01).double().mean(0)
    print(f"{name:18}", "  ".join(f"layer {i}: {rate:.0%}" for i, rate in enumerate(rates.tolist())))
print(whence.novelty(posterior, faults["two dead columns"][:1], reference=reference).words(0))

# %% [markdown]
# ## Is another detector better?
#
# Whichever is best depends on the data. Here several are compared on one kind of fault. (A choice that is made on these inputs is made for these inputs.)

# %%
print(whence.compare_detectors(posterior, x, faults["two dead columns"], train=train, reference=reference))

# %% [markdown]
# ## From inputs to an alarm
#
# One flagged input is no reason to stop: 1% of usual ones are flagged. A batch of 200 usual inputs has two flags on average. The alarm is raised at a number that usual inputs reach in less than one batch in a thousand.

# %%
from math import comb


def tail(flags, inputs=200, rate=0.01):
    """The probability of at least this many flags among usual inputs."""
    return sum(comb(inputs, k) * rate**k * (1 - rate) ** (inputs - k) for k in range(flags, inputs + 1))


limit = next(flags for flags in range(200) if tail(flags) < 0.001)
print(f"alarm at {limit} flags in 200 (a false alarm in {1 / tail(limit):,.0f} batches, if the rate is 1%)")
flags = usual.flag(0.01)
batches = torch.tensor([int(part.sum()) for part in flags[: len(flags) // 200 * 200].split(200)])
print("flags in batches of usual inputs:", batches.tolist())
mixed = torch.cat([x[:190], faults["two dead columns"][:10]])
print(
    "flags if 10 of 200 have dead columns:", int(whence.novelty(posterior, mixed, reference=reference).flag(0.01).sum())
)

# %% [markdown]
# ## In the served module
#
# `as_module` gives a plain `nn.Module` that returns the prediction, its uncertainty and the p-value of novelty. It can be exported, and needs no whence where it runs. Its novelty is estimated along random directions and is less sharp than `whence.novelty`, so its rates are measured again.

# %%
served = posterior.as_module(check=x[:8], novelty=validation.tensors()[0][:300])
with torch.no_grad():
    for name, inputs in {
        "usual": x,
        "two dead columns": faults["two dead columns"],
        "noise": faults["noise"],
    }.items():
        print(f"{name:18} flagged {(served(inputs[:300]).p_value <= 0.01).double().mean():.1%}")

# %% [markdown]
# ## Decision
#
# **Raise an alarm at 9 flags among 200 inputs, and look first at the layer that noticed.**
#
# - 1.3% of the usual inputs are flagged (1% is intended), and ten batches of them have at most 5 flags. With 10 damaged inputs in a batch there are 13, so the alarm is raised.
# - Dead columns and noise are flagged in 100% of the cases, although the network is often sure of its answers: the AUROC of the entropy is 0.802 and 0.627. Other characters are flagged in 99.9% and 94.4%.
# - If the first layer alone notices (100%, beside 16% and 18% for dead columns), the images are damaged: look at the scanner. If all layers notice, as for letters (100%, 72%, 54%), the content is new.
# - Digits that are upside down or have half the contrast are flagged in 6.7% and 11.8% of the cases only. If all inputs are like that the alarm is raised nevertheless; a few among many pass. Where these matter, they need a test of their own.
# - In the served module 88.3% and 92.0% are flagged, and 0.7% of the usual inputs. That is enough for this alarm.
