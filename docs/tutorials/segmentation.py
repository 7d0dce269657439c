# %% [markdown]
# # Segmentation
#
# A U-Net says for each pixel of an image what it belongs to. Which pixels may be wrong, where in the network does the uncertainty of a region come from, and which images should a person check? The images are composed from Fashion-MNIST: pieces of clothing, in front of noise, that partly cover each other. For every pixel it is known which piece it belongs to.

# %% tags=["parameters"]
dataset = "fashion-mnist"  # any set of whence.zoo with grey images
kinds = [0, 1, 6, 8, 9]  # the classes of pieces; the background is one more
unknown = 5  # a class that is not trained on
side, canvas = 16, 40  # pixels of a piece, of an image
train_size, validation_size, test_size = 1_200, 100, 200
epochs = 12

# %%
import torch
from matplotlib.figure import Figure
from torch import nn

import whence
from whence import metrics, zoo

torch.manual_seed(0)
data = zoo.load(dataset, seed=0)
names = ["background", *(str(data.classes[kind]) for kind in kinds)]
NOT_SCORED = -100  # pixels of a piece that has no class


def compose(part, count, seed, extra=None):
    """Images of one to three pieces in noise, and the class of every pixel; each has one piece of class ``extra``."""
    generator = torch.Generator().manual_seed(seed)
    pieces, labels = part.tensors()
    pieces = nn.functional.interpolate(pieces, size=(side, side), mode="area")[:, 0]
    pieces = (pieces - pieces.min()) / (pieces.max() - pieces.min())
    usual, other = (
        torch.isin(labels, torch.tensor(kinds)).nonzero()[:, 0],
        (labels == (-1 if extra is None else extra)).nonzero()[:, 0],
    )
    images, classes = torch.zeros(count, canvas, canvas), torch.zeros(count, canvas, canvas, dtype=torch.long)
    for image, pixels in zip(images, classes, strict=True):
        number = int(torch.randint(1, 4, (1,), generator=generator))
        for place in range(number):
            among = other if extra is not None and place == number - 1 else usual
            which = among[torch.randint(len(among), (1,), generator=generator)][0]
            top, left = torch.randint(canvas - side + 1, (2,), generator=generator).tolist()
            inside = pieces[which] > 0.15
            label = kinds.index(int(labels[which])) + 1 if int(labels[which]) in kinds else NOT_SCORED
            image[top : top + side, left : left + side][inside] = pieces[which][inside]
            pixels[top : top + side, left : left + side][inside] = label
    return (images + 0.15 * torch.randn(images.shape, generator=generator))[:, None], classes


train, validation = compose(data.train, train_size, 0), compose(data.validation, validation_size, 1)
x, y = compose(data.test, test_size, 2)
strange_x, strange_y = compose(data.test, test_size, 3, extra=unknown)
print(f"{len(train[0]):,} images of {canvas} × {canvas} pixels; classes: {', '.join(names)}")
print(f"{(y > 0).double().mean():.1%} of the pixels belong to a piece")

# %% [markdown]
# ## A U-Net
#
# It has two steps down and two up, and says six numbers for every pixel. Networks of [MONAI](../integrations/monai.md) and other libraries take its place without other changes.


# %%
def block(inputs, outputs):
    layers = []
    for channels in (inputs, outputs):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self, classes, width=8):
        super().__init__()
        self.down1, self.down2 = block(1, width), block(width, 2 * width)
        self.bottom = block(2 * width, 4 * width)
        self.up2, self.up1 = block(6 * width, 2 * width), block(3 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        fine = self.down1(x)
        middle = self.down2(nn.functional.max_pool2d(fine, 2))
        coarse = self.bottom(nn.functional.max_pool2d(middle, 2))
        middle = self.up2(torch.cat([nn.functional.interpolate(coarse, scale_factor=2.0), middle], 1))
        return self.head(self.up1(torch.cat([nn.functional.interpolate(middle, scale_factor=2.0), fine], 1)))


network = UNet(len(names))
optimiser = torch.optim.Adam(network.parameters())
for epoch in range(epochs):
    optimiser.param_groups[0]["lr"] = 0.01 * (1 - epoch / epochs)
    for batch in torch.randperm(train_size).split(20):
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(train[0][batch]), train[1][batch]).backward()
        optimiser.step()
network.eval()
with torch.no_grad():
    plain = network(x).softmax(1)
print(f"{sum(p.numel() for p in network.parameters()):,} weights")
print(f"pixels that are right: {(plain.argmax(1) == y).double().mean():.1%}")

# %% [markdown]
# ## A posterior
#
# The call is that for a classifier: the shape of the targets says that every pixel has a class. With thousands of outputs for an image, one label is drawn for every pixel (the sampled Fisher).

# %%
posterior = whence.laplace(network, train, likelihood="classification", progress=False)
posterior = posterior.tune(tuple(part[:40] for part in validation), progress=False)
prediction = posterior.predict(x)
for name, probs in {"plain": plain, "posterior": prediction.probs}.items():
    print(f"{name:10} NLL {metrics.nll(probs, y)}   ECE {metrics.ece(probs, y)}")

# %% [markdown]
# Pixels of one image are not independent of each other, so the intervals count images, not pixels.
#
# ## Maps
#
# The prediction has an uncertainty for every pixel. Entropy is the whole of it, `epistemic` the part that is due to the weights and that more data could remove. The last two images have a piece of a kind that was not trained on.

# %%
strange = posterior.predict(strange_x)
wrong, scored = prediction.labels != y, strange_y != NOT_SCORED
shown = wrong.flatten(1).double().mean(1).argsort(descending=True)[[0, test_size // 10, test_size // 4, test_size // 2]]
rows = [(x, y, prediction, int(i)) for i in shown] + [(strange_x, strange_y, strange, i) for i in (0, 1)]
colours = torch.tensor(
    [(0.93, 0.93, 0.93), (0.0, 0.45, 0.70), (0.90, 0.62, 0.0), (0.34, 0.71, 0.91), (0.0, 0.62, 0.45), (0.8, 0.47, 0.65)]
)


def painted(classes):
    """Colours of classes; black where there is none."""
    picture = colours[classes.clamp(min=0) % len(colours)].clone()
    picture[classes == NOT_SCORED] = 0
    return picture


picture = Figure(figsize=(9, 1.75 * len(rows) + 0.4))
panels = picture.subplots(len(rows), 5)
tops = {"entropy": float(prediction.entropy.max()), "epistemic": float(prediction.epistemic.quantile(0.999))}
for line, (inputs, truth, found, i) in zip(panels, rows, strict=True):
    line[0].imshow(inputs[i, 0], cmap="gray_r", vmin=-0.2, vmax=1)
    line[1].imshow(painted(truth[i]))
    line[2].imshow(painted(found.labels[i]))
    for panel, (part, top) in zip(line[3:], tops.items(), strict=True):
        panel.imshow(getattr(found, part)[i], cmap="magma", vmin=0, vmax=top)
    for panel in line:
        panel.axis("off")
for panel, title in zip(panels[0], ("image", "true classes", "prediction", "entropy", "epistemic"), strict=True):
    panel.set_title(title, fontsize=9)
legend = [(name, colours[i % len(colours)] * 0.85) for i, name in enumerate(names)] + [("unknown kind", torch.zeros(3))]
for i, (name, colour) in enumerate(legend):
    picture.text(0.13 + 0.113 * i, 0.085, f"■ {name}", color=tuple(colour.tolist()), fontsize=8)
picture

# %% [markdown]
# Three things can be told apart. Whole T-shirts and shirts are bright in the entropy and dark in `epistemic`: at this resolution the two look alike, and more images of the same kind would not change that. Where pieces cover each other `epistemic` is bright too: the weights are not determined for what is seen there, and more images could help. And every border is a thin bright line. The unknown kind is black in the second column; the network takes it for a kind that it knows, often with little doubt.
#
# ## Are uncertain pixels wrong?

# %%
image_of = torch.arange(test_size)[:, None, None].expand_as(y)
print("entropy against errors: AUROC", metrics.auroc(prediction.entropy, wrong, groups=image_of, resamples=200))
for label, name in enumerate(names):
    here = y == label
    print(
        f"{name:12} error {wrong[here].double().mean():6.1%}   entropy {prediction.entropy[here].mean():.3f} nats, "
        f"{prediction.epistemic[here].mean():.3f} of it epistemic"
    )
edges = nn.functional.max_pool2d(y[:, None].float(), 3, 1, 1) != -nn.functional.max_pool2d(-y[:, None].float(), 3, 1, 1)
for name, here in {"within a pixel of a border": edges[:, 0], "elsewhere": ~edges[:, 0]}.items():
    print(
        f"{name:28} {here.double().mean():6.1%} of the pixels, {wrong[here].double().sum() / wrong.sum():.1%} of the errors"
    )

# %% [markdown]
# Yes: the entropy ranks wrong pixels above right ones. The errors are of two kinds. More than half of them lie on borders, in an eighth of the pixels. Of the others, many are whole pieces: T-shirts and shirts are wrong twice as often as the rest.
#
# ## Where in the network?
#
# `where(x, at=…)` is about some outputs only: a mask says which pixels of each image. So regions can be compared: the background, pieces of known kinds, and pieces of the unknown kind. Layers are added up by part of the network.

# %%
few = 12
regions = {
    "background": (x[:few], y[:few] == 0),
    "pieces": (x[:few], y[:few] > 0),
    "unknown kind": (strange_x[:few], ~scored[:few]),
}
tables = {name: posterior.where(inputs, at=mask) for name, (inputs, mask) in regions.items()}
print(f"{'share of the variance':22}" + "".join(f"{name:>14}" for name in tables))
for part, _ in network.named_children():
    of_part = [[row for row in table.layers if row.name.split(".")[0] == part] for table in tables.values()]
    print(f"{part:22}" + "".join(f"{sum(row.variance_share for row in rows):14.1%}" for rows in of_part))

# %% [markdown]
# The doubt about pieces comes mostly from the bottom of the network, whose units see a whole piece at once; that about the background rather from the way up, which draws the borders. The profile of the unknown kind is close to that of the pieces that are known, so it does not give the unknown kind away.
#
# ## Which images does a person check?
#
# A person looks at images, not at pixels. The score of an image is the mean entropy of its pixels, and its error the share of its pixels that are wrong. How many of all wrong pixels lie in the images with the highest scores?

# %%
score, error = prediction.entropy.flatten(1).mean(1), wrong.flatten(1).double().mean(1)
order, best = score.argsort(descending=True), error.argsort(descending=True)
print(f"wrong pixels: {error.mean():.2%}")
for share in (0.1, 0.2, 0.3, 0.5):
    checked = round(share * test_size)
    print(
        f"check {share:3.0%} of the images: they hold {error[order[:checked]].sum() / error.sum():.1%} of the wrong pixels "
        f"(at best {error[best[:checked]].sum() / error.sum():.1%}); the others have {error[order[checked:]].mean():.2%} wrong"
    )
pixels = prediction.entropy.flatten().argsort(descending=True)
first = pixels[: len(pixels) // 20]
print(
    f"the most uncertain 5% of all pixels hold {wrong.flatten()[first].double().sum() / wrong.sum():.1%} of the wrong ones"
)

# %% [markdown]
# Would it notice images with a piece of an unknown kind? The mean over an image drowns a small region; the most uncertain twentieth of its pixels does not.

# %%
unusual = torch.arange(2 * test_size) >= test_size
largest = canvas**2 // 20


def top(values):
    return values.flatten(1).topk(largest).values.mean(1)


for name, of in {"mean": lambda values: values.flatten(1).mean(1), "most uncertain 5%": top}.items():
    for part in ("entropy", "epistemic"):
        scores = torch.cat([of(getattr(prediction, part)), of(getattr(strange, part))])
        print(f"{name:18} {part:10} AUROC {metrics.auroc(scores, unusual)}")

# %% [markdown]
# The rule: the threshold on the mean entropy is chosen on the validation images so that the images that are not checked have at most 3% wrong pixels.

# %%
before = posterior.predict(validation[0])
mistakes = (before.labels != validation[1]).flatten(1).double().mean(1)
rule = metrics.defer(before.entropy.flatten(1).mean(1), mistakes, max_error=0.03)
done = rule.check(score, error)
print("not checked:", done.coverage, "  wrong pixels", done.error)
print("checked: wrong pixels", done.deferred_error)
strange_score = strange.entropy.flatten(1).mean(1)
print(f"images with an unknown piece: {(strange_score > rule.threshold).double().mean():.1%} are checked")

# %% [markdown]
# ## Decision
#
# **A person checks the images whose mean entropy is above the threshold; the other 55.5% go on unchecked.**
#
# - Of the pixels that are not checked 2.05% are wrong (1.66% to 2.57%), below the limit of 3%; of all pixels it is 4.51%, of those that are checked 7.57%.
# - If that is too much work, show pixels instead of images: the most uncertain 5% of all pixels hold 50.5% of the wrong ones. Checking 20% of the images finds 36.5% of them, where the best possible choice of images would find 49.2%.
# - The rule does not protect against kinds that the network has never seen: of the images with such a piece 45.5% are checked, about as many as of the others, and the best score of an image has an AUROC of 0.696 only. If unknown kinds will come, collect some, and train with them as a class of their own.
# - What to do next: 56.1% of the errors are within a pixel of a border, and do little harm where areas are counted. Of the T-shirts' pixels 38.3% are wrong, with 0.873 nats of entropy, 0.039 of it due to the weights: more images of this resolution will not help, larger ones might, or one class for both.
# - For the probabilities alone the posterior is not needed here: its log loss is that of the plain network (0.121). It adds the epistemic map, and the profile by region.
