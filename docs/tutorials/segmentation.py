# %% [markdown]
# # Segmentation
#
# A network labels every pixel. Which pixels can be trusted, and which images should a person look at? The scenes of this tutorial are made from real handwritten digits: two of them on a noisy background, and each pixel is background or one of ten digits.

# %% tags=["parameters"]
dataset = "mnist"
scenes, held = 640, 60  # to train on; for validation, and to test on
epochs = 8
draws = 16

# %%
import torch
from matplotlib.figure import Figure
from torch import nn

import whence
from whence import metrics, zoo

torch.manual_seed(0)
data = zoo.load(dataset, seed=0, normalise=False)
side = 36


def made(part, count, seed, clutter=0.0):
    """Scenes with two digits, and the label of every pixel (0: background, 1 + d: the digit d)."""
    generator = torch.Generator().manual_seed(seed)
    digits, labels = part.tensors()
    digits = digits / digits.max()
    size = digits.shape[-1]
    images = 0.25 * torch.rand(count, 1, side, side, generator=generator)
    targets = torch.zeros(count, side, side, dtype=torch.long)
    for scene in range(count):
        for _ in range(2):
            one = int(torch.randint(len(digits), (), generator=generator))
            top, left = torch.randint(side - size + 1, (2,), generator=generator).tolist()
            window = (slice(top, top + size), slice(left, left + size))
            images[scene, 0][window] = torch.maximum(images[scene, 0][window], digits[one, 0])
            targets[scene][window][digits[one, 0] > 0.4] = 1 + labels[one]
    return images + clutter * torch.randn(images.shape, generator=generator), targets


train, validation, test = made(data.train, scenes, 0), made(data.validation, held, 1), made(data.test, held, 2)
print(f"{(train[1] > 0).double().mean():.1%} of the pixels belong to a digit")


# %%
def block(inputs, outputs):
    return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]


network = nn.Sequential(
    *block(1, 16), nn.MaxPool2d(2), *block(16, 32), nn.MaxPool2d(2), *block(32, 48), *block(48, 48),
    nn.Upsample(scale_factor=2), *block(48, 32), nn.Upsample(scale_factor=2), nn.Conv2d(32, 11, 3, padding=1),
)  # fmt: skip
optimiser = torch.optim.Adam(network.parameters(), lr=4e-3)
for _ in range(epochs):
    for batch in torch.randperm(len(train[0])).split(16):
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(train[0][batch]), train[1][batch]).backward()
        optimiser.step()
network.eval()
with torch.no_grad():
    answers = network(test[0]).argmax(1)
on_digits = test[1] > 0
right = (answers == test[1]).double()
print(f"pixels right: {right.mean():.2%}, of those on digits {right[on_digits].mean():.2%}")

# %% [markdown]
# ## A posterior over maps
#
# The call is the one for images. Predictions of so many outputs are made by draws of the linearised network.

# %%
posterior = whence.laplace(network, train, likelihood="classification", curvature="mc", progress=False)
posterior = posterior.tune((validation[0][:24], validation[1][:24]), probes=draws // 2, progress=False)
prediction = posterior.predict(test[0], num_samples=draws)
print(prediction.entropy.shape)
with torch.no_grad():
    plain = network(test[0]).softmax(1)
for name, probs in {"plain": plain, "posterior": prediction.probs}.items():
    nll, ece = metrics.nll(probs, test[1], resamples=200), metrics.ece(probs, test[1], resamples=0)
    print(f"{name:10} NLL of a pixel {nll}   ECE {float(ece):.4f}")

# %%
uncertainty = prediction.entropy.flatten(1).mean(1)
most = uncertainty.argsort(descending=True)[:4].tolist()
picture = Figure(figsize=(8.5, 7.6))
for row, i in zip(picture.subplots(4, 4), most, strict=True):
    panels = (test[0][i, 0], test[1][i], prediction.labels[i], prediction.entropy[i])
    for panel, image, title in zip(row, panels, ("image", "truth", "answer", "uncertainty"), strict=True):
        panel.imshow(image, cmap="gray" if title == "image" else ("magma" if title == "uncertainty" else "tab20"))
        panel.set_title(title, fontsize=8)
        panel.axis("off")
picture

# %% [markdown]
# ## Does the uncertainty find the wrong pixels?
#
# Pixels of one image are not independent, so an interval resamples whole images: `groups` says which pixels belong together.

# %%
wrong = prediction.labels != test[1]
image_of = torch.arange(len(wrong)).view(-1, 1, 1).expand_as(wrong)
some = slice(0, 40)
print("AUROC of the entropy for wrong pixels", metrics.auroc(
    prediction.entropy[some].flatten(), wrong[some].flatten(), groups=image_of[some].flatten(), resamples=200
))  # fmt: skip

# %% [markdown]
# ## Where in the network?

# %%
posterior.where(test[0][:10], probes=4)

# %% [markdown]
# ## Which images go to a person?
#
# Whole images are deferred, by the mean entropy of their pixels; the error of an image is its share of wrong digit pixels. The rule is chosen on validation scenes and checked on test scenes.


# %%
def share_wrong(answers, targets):
    there = (targets > 0) | (answers > 0)
    return ((answers != targets) & there).flatten(1).sum(1) / there.flatten(1).sum(1)


before = posterior.predict(validation[0], num_samples=draws)
rule = metrics.defer(before.entropy.flatten(1).mean(1), share_wrong(before.labels, validation[1]), coverage=0.8)
checked = rule.check(uncertainty, share_wrong(prediction.labels, test[1]))
print("answers", checked.coverage)
print("share of wrong digit pixels")
print("  all      ", f"{share_wrong(prediction.labels, test[1]).mean():.3f}")
print("  answered ", checked.error)
print("  deferred ", checked.deferred_error)

# %% [markdown]
# ## A worse camera
#
# The same scenes with more noise: does the uncertainty rise with the error?

# %%
for clutter in (0.0, 0.1, 0.2, 0.3):
    images, targets = made(data.test, held // 2, 3, clutter)
    found = posterior.predict(images, num_samples=draws)
    deferred = (found.entropy.flatten(1).mean(1) > rule.threshold).double().mean()
    wrong_there = share_wrong(found.labels, targets).mean()
    print(f"noise {clutter:.1f}: {wrong_there:.1%} of digit pixels wrong, {deferred:.0%} of the images deferred")
