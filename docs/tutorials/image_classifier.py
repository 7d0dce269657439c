# %% [markdown]
# # Image classifier
#
# You have a network that classifies images. How far can its probabilities be trusted, where does its uncertainty come from, and which images should go to a person? This tutorial answers these questions for a small convolutional network on Fashion-MNIST, and ends with a rule for handing images over.

# %% tags=["parameters"]
dataset = "fashion-mnist"  # any set of whence.zoo with images
train_size, test_size = 12_000, 4_000
epochs = 8

# %%
import torch
from torch import nn

import whence
from whence import metrics, zoo
from whence.report import figures

torch.manual_seed(0)
data = zoo.load(dataset, seed=0)
train, validation, test = data.train.take(train_size), data.validation.take(test_size), data.test.take(test_size)
x, y = test.tensors()
print(data)

# %% [markdown]
# ## A network
#
# Any trained `nn.Module` will do. This one is trained here, in the usual way.

# %%
model = nn.Sequential(
    nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(8, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    nn.Linear(16 * (data.shape[-1] // 4) ** 2, 64), nn.ReLU(), nn.Linear(64, 10),
)  # fmt: skip
zoo.train(model, train, validation=validation, epochs=epochs, lr=0.05, batch_size=64, progress=False)
print("test accuracy", metrics.accuracy(model(x).softmax(1), y))

# %% [markdown]
# ## A posterior
#
# `whence.laplace` goes over the training data once and asks how sharply the loss determines each weight. It does not train the network again and does not change it. The strength of the prior is then chosen on validation data.

# %%
posterior = whence.laplace(model, train, likelihood="classification", progress=False)
posterior = posterior.tune(validation, progress=False)
posterior

# %% [markdown]
# ## Can the probabilities be trusted?
#
# Compare three networks on the test data: the plain one, the plain one with its temperature fitted to the same validation data (a fair rival, since it is nearly free), and the posterior.

# %%
with torch.no_grad():
    plain, held = model(x), model(validation.tensors()[0])
log_temperature = torch.zeros(1, requires_grad=True)
optimiser = torch.optim.LBFGS([log_temperature], max_iter=50)


def loss():
    optimiser.zero_grad()
    value = nn.functional.cross_entropy(held / log_temperature.exp(), validation.tensors()[1])
    value.backward()
    return value


optimiser.step(loss)
prediction = posterior.predict(x)
candidates = {
    "plain": plain.softmax(1),
    "temperature": (plain / log_temperature.detach().exp()).softmax(1),
    "posterior": prediction.probs,
}
for name, probs in candidates.items():
    print(f"{name:12} NLL {metrics.nll(probs, y)}   ECE {metrics.ece(probs, y)}")

# %%
figures.reliability(metrics.reliability(prediction, y), ece=metrics.ece(prediction, y))

# %% [markdown]
# ## Where does the uncertainty come from?
#
# `variance_share` is the share of the predictive variance that a layer causes. Read it beside `prior_share`: the share that it would have if nothing had been learned. `explained` says by how much the training data reduced the prior variance of the layer.

# %%
where = posterior.where(x[:500])
where

# %% [markdown]
# Which classes are uncertain, and which images? Total uncertainty is the sum of two parts: `aleatoric` is what more training data would not remove (a shirt that looks like a T-shirt), `epistemic` is what they could.

# %%
for label in range(10):
    of_class = y == label
    wrong = (prediction.labels != y)[of_class].double().mean()
    total, weights = prediction.entropy[of_class].mean(), prediction.epistemic[of_class].mean()
    print(f"{data.classes[label]:12} error {wrong:6.1%}   uncertainty {total:.3f} nats, {weights:.3f} of it epistemic")

# %%
from matplotlib.figure import Figure

uncertain = prediction.entropy.argsort(descending=True)[:8]
picture = Figure(figsize=(9, 2.4))
for panel, i in zip(picture.subplots(1, 8), uncertain.tolist(), strict=True):
    panel.imshow(x[i, 0], cmap="gray_r")
    panel.set_title(f"{data.classes[y[i]]},\nnot {data.classes[prediction.labels[i]]}?", fontsize=7)
    panel.axis("off")
picture

# %% [markdown]
# ## Which images go to a person?
#
# `metrics.defer` finds the threshold on the validation data under which at most 5% of the answers are wrong, with 95% confidence. It is then applied to the test data, which had no part in choosing it.

# %%
before = posterior.predict(validation.tensors()[0])
mistakes = (before.labels != validation.tensors()[1]).double()
rule = metrics.defer(before.entropy, mistakes, max_error=0.05, confidence=0.95)
checked = rule.check(prediction.entropy, (prediction.labels != y).double())
print(f"without the rule: error {(prediction.labels != y).double().mean():.4f}")
print("with it: answers", checked.coverage, "  error", checked.error)
print("deferred images: error", checked.deferred_error)

# %%
figures.risk_coverage({"posterior": metrics.risk_coverage(prediction, y, uncertainty=prediction.entropy)})

# %% [markdown]
# ## All of it on one page
#
# `whence.audit` computes the above and more, and writes a page that opens in a browser.

# %%
audit = whence.audit(posterior, test=test.take(500), validation=validation.take(500), quick=True, progress=False)
audit.html("image-classifier.html")
for point in audit.results.verdict.points:
    print(f"{point.tone:8} {point.words}")

# %% [markdown]
# ## Decision
#
# **Answer the 73.4% of the images below the threshold, and give the others to a person.**
#
# - Of those that are answered 4.5% are wrong (0.0377 to 0.0531), instead of 14.0% of all. Of those that are deferred 40.1% would have been wrong. The threshold was chosen so that the error stays below 5% with 95% confidence, if new images are like the validation images.
# - More photographs of the same kind are not the first thing to pay for. Shirts are wrong in 39.9% of the cases; of their uncertainty of 0.859 nats only 0.056 is due to the weights. The rest stays however much data there are: at this resolution, a shirt, a pullover and a coat look alike. Better pictures or merged classes would do more.
# - For probabilities alone, temperature scaling is enough: its log loss is 0.415, that of the posterior 0.409, and the audit finds no significant difference. What the posterior adds is the split of the uncertainty and where it comes from.
