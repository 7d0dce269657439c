# %% [markdown]
# # A network of a hundred million weights
#
# Some networks are so large that a posterior over all weights sounds out of the question. This tutorial fits one to a network of 10⁸ weights on one core of a CPU, measures what it costs in time, memory and disk, and asks whether it is worth it: with all layers, or with some of them.
#
# The network is trained here, briefly: one pass over 2,000 images of Fashion-MNIST, so it is far from finished, and its numbers are not those of a good classifier. It has the feed-forward blocks of a BERT-large without the attention, twelve of them, which is far more than the task needs: it is here for its size. Seconds are those of the processor (`time.process_time`, one thread), so that other work on the machine does not count.

# %% tags=["parameters"]
dataset, other = "fashion-mnist", "mnist"  # to train on, and novel inputs
width, inner, depth = 1_024, 4_096, 12
train_size, validation_size, test_size = 2_000, 300, 200
few = 50  # images for what is slow
taus = (100.0, 10.0, 1.0, 0.1, 0.01, 0.001)  # strengths of the prior
wide = 2_048  # Kronecker factors with more rows than this are not formed

# %%
import os
import resource
import time
import warnings
from collections import OrderedDict

import torch
from matplotlib.figure import Figure
from torch import nn

import whence
from whence import metrics, zoo

GIB = 2**30


def peak():
    """The largest memory of this process so far, in GiB (on Linux)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


torch.manual_seed(0)
torch.set_num_threads(1)
data = zoo.load(dataset, seed=0)
train = data.train.take(train_size).with_(batch_size=100)
validation = data.validation.take(validation_size)
x, y = data.test.take(test_size).tensors()
if other is None:
    novel = x.flip(-2)
else:
    novel, _ = zoo.load(other, test_only=True).test.like(data.train).take(test_size).tensors()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


network = nn.Sequential(
    OrderedDict(
        flat=nn.Flatten(),
        enter=nn.Linear(x[0].numel(), width),
        blocks=nn.Sequential(*(Block() for _ in range(depth))),
        norm=nn.LayerNorm(width),
        head=nn.Linear(width, 10),
    )
)
weights = sum(p.numel() for p in network.parameters())
start = time.process_time()
optimiser = torch.optim.AdamW(network.parameters(), lr=1e-4)
inputs, labels = train.tensors()
for batch in torch.randperm(train_size).split(50):
    optimiser.zero_grad()
    nn.functional.cross_entropy(network(inputs[batch]), labels[batch]).backward()
    optimiser.step()
network.eval().requires_grad_(True).zero_grad()
del optimiser
print(f"{weights:,} weights, {weights * 4 / GIB:.2f} GiB; trained in {time.process_time() - start:.0f} s")
print(f"largest memory so far: {peak():.1f} GiB")
with torch.no_grad():
    plain, plain_novel = network(x).softmax(1), network(novel).softmax(1)
print("accuracy", metrics.accuracy(plain, y))

# %% [markdown]
# ## What would it take?
#
# A Kronecker posterior keeps two matrices for each layer: one of its inputs, D × D, and one of its outputs, O × O, and then their eigenvectors. Their size does not depend on the data. What it comes to can be computed before anything is fitted:


# %%
def kronecker(limit):
    """Bytes of sums and decompositions of all Linear layers; factors with more than ``limit`` rows are diagonal."""
    sides = [(m.in_features + 1, m.out_features) for m in network.modules() if isinstance(m, nn.Linear)]
    return sum(4 * (2 * sum(n * n for n in pair if n <= limit + 1) + pair[0] * pair[1]) for pair in sides)


for name, limit in {"all factors": 2**14, f"factors up to {wide:,} rows": wide}.items():
    print(f"{name:28} {kronecker(limit) / GIB:5.2f} GiB")
print(f"{'the whole covariance':28} {4 * weights**2 / GIB:,.0f} GiB")

# %% [markdown]
# The whole covariance is out of the question, Kronecker factors are not. Their memory is dominated by the wide sides (4,096 × 4,096), and so is the time: decomposing a matrix takes about n³ steps. `max_factor=` leaves wide factors out: only their diagonal is kept, and the other side of the layer stays whole.
#
# ## Fit
#
# `curvature="mc"` draws one label for each example instead of taking all classes (the sampled Fisher): one backward pass instead of ten. With more than 100 outputs it is the default. `layers=` selects what becomes Bayesian; nothing is computed for the rest.

# %%
choices = {
    "head": {"layers": "last"},
    "norm and head": {"layers": ["norm.*", "head.*"]},
    "last three blocks": {"layers": [f"blocks.{depth - 1 - i}.*" for i in range(min(3, depth))] + ["norm.*", "head.*"]},
    "all layers": {},
}


def fit(data, **options):
    generator = torch.Generator().manual_seed(0)
    return whence.laplace(
        network, data, likelihood="classification", curvature="mc", max_factor=wide, generator=generator,
        progress=False, **options,
    )  # fmt: skip


posteriors, costs = {}, {}
for name, options in choices.items():
    start = time.process_time()
    posteriors[name] = fit(train, **options)
    costs[name] = time.process_time() - start
    count = sum(mean.numel() for mean in posteriors[name].mean().values())
    kept = sum(layer.memory for layer in posteriors[name].structures.values())
    print(f"{name:18} {count:11,} weights: {costs[name]:5.1f} s, {kept / GIB:.2f} GiB")
print(f"largest memory so far: {peak():.1f} GiB")

# %% [markdown]
# `structures` says what each layer got, and why.

# %%
for layer, structure in list(posteriors["all layers"].structures.items())[:4]:
    print(f"{layer:16} {structure.structure:6} {structure.memory / 2**20:6.1f} MiB  {structure.reason or ''}")

# %% [markdown]
# ## A fit that is interrupted
#
# A fit of hours should survive a restart. With a `checkpoint` in `Execution` the sums are written to a file while the data are read, and the same call goes on from there. Here the data end with an error halfway:


# %%
class Breaks:
    """The training data; the first pass ends with an error."""

    def __init__(self):
        self.stop_at = train_size // 2

    def __iter__(self):
        seen = 0
        for batch in train:
            if seen >= self.stop_at:
                raise ConnectionError("the disk is gone")
            seen += len(batch[1])
            yield batch


breaks = Breaks()
execution = whence.Execution(checkpoint="fit.safetensors", checkpoint_every=0)
with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)  # what it says was said above
    start = time.process_time()
    try:
        fit(breaks, execution=execution, **choices["last three blocks"])
    except ConnectionError as error:
        seconds = time.process_time() - start
        print(f"{error}, after {seconds:.1f} s; the checkpoint has {os.path.getsize('fit.safetensors') / GIB:.2f} GiB")
    breaks.stop_at = train_size + 1
    start = time.process_time()
    again = fit(breaks, execution=execution, **choices["last three blocks"])
print(f"the rest took {time.process_time() - start:.1f} s")
variances = again.variance()
same = all(torch.equal(variances[n], v) for n, v in posteriors["last three blocks"].variance().items())
print("the same posterior, bit for bit:", same)
del again, variances

# %% [markdown]
# ## The strength of the prior
#
# `tune` tries more than a hundred strengths on validation data. For the head it keeps what it needs in memory, and is done in seconds. With all layers that is larger than what `tune` may keep, so every round goes through the network again, which takes minutes. A few strengths tried by hand are enough here: another prior needs no new fit (`with_prior`), only predictions. The default prior is relative to the signal in the network, so its strength τ = 1 is a sensible start for any layer. Below, the strongest priors are on the left, and 50 validation images are used.

# %%
some = [part[:few] for part in validation.tensors()]
chosen = {}
print("NLL at τ =         " + "".join(f"{tau:8g}" for tau in taus))
for name, posterior in posteriors.items():
    start = time.process_time()
    tried = [posterior.with_prior(whence.Relative(tau)) for tau in taus]
    losses = [float(metrics.nll(trial.predict(some[0]), some[1])) for trial in tried]
    chosen[name] = min(zip(losses, taus, strict=True))[1]
    found = "".join(f"{loss:8.3f}" for loss in losses)
    print(f"{name:18} {found}   τ = {chosen[name]:g}, {time.process_time() - start:.1f} s")
start = time.process_time()
tuned = posteriors["head"].tune(validation, progress=False)
seconds = time.process_time() - start
print(f"head, by tune on {validation_size} images: τ = {tuned.prior_precision.tau:.3g}, {seconds:.1f} s")

# %% [markdown]
# With 50 images, differences of a few thousandths say nothing: every posterior is as good at the default as at its best, so for all layers the default can stay. What the table does show is how much a weak prior harms. The variances of the layers add up: at τ = 0.01 the head has lost nothing, three blocks have lost a tenth of a nat, and all layers a third.
#
# ## Predictions, and what they are worth
#
# The same questions to each: are the probabilities better, does the uncertainty find errors, does it find novel inputs (digits instead of clothes), and what does a prediction cost? For the plain network novel inputs are found by the entropy of its probabilities, for the posteriors by the epistemic part, which is due to the weights. No novel input was used to choose anything. Each posterior is shown at the default τ = 1, at a weak prior of τ = 0.01, and at the strength chosen above.


# %%
def entropy(probs):
    return -(probs * probs.clamp(min=1e-12).log()).sum(1)


novel_is = torch.arange(2 * test_size) >= test_size
wrong = plain.argmax(1) != y
print(f"plain: NLL {metrics.nll(plain, y)}")
print(f"  errors found: AUROC {metrics.auroc(entropy(plain), wrong)}")
print(f"  novel inputs found: AUROC {metrics.auroc(torch.cat([entropy(plain), entropy(plain_novel)]), novel_is)}")
asked = {
    (name, tau): posterior.with_prior(whence.Relative(tau))
    for name, posterior in posteriors.items()
    for tau in sorted({1.0, 0.01, chosen[name]}, reverse=True)
}
asked["head", tuned.prior_precision.tau] = tuned
for (name, tau), posterior in asked.items():
    start = time.process_time()
    usual, strange = posterior.predict(x), posterior.predict(novel)
    seconds = (time.process_time() - start) / (2 * test_size)
    found = metrics.auroc(torch.cat([usual.epistemic, strange.epistemic]), novel_is)
    print(f"{name}, τ = {tau:.3g}: NLL {metrics.nll(usual, y)}, a prediction {1_000 * seconds:.1f} ms")
    print(f"  errors found: AUROC {metrics.auroc(usual.entropy, usual.labels != y)}")
    print(f"  novel inputs found by the epistemic part: AUROC {found}")
print(f"largest memory so far: {peak():.1f} GiB")

# %% [markdown]
# - **Probabilities and errors: no gain to speak of.** NLL is 0.677 to 0.683 for the plain network and for every posterior at the strength chosen for it, and errors are found with an AUROC of 0.847 to 0.851. The intervals of each are far wider than these differences.
# - **Novel inputs: a clear gain.** Plain entropy has an AUROC of 0.873 (0.838 to 0.903), all layers at τ = 1 have 0.948 (0.923 to 0.967), the tuned head 0.9968 (0.9897 to 0.9991).
# - **The head does not win at every strength.** At τ = 1 all layers find somewhat more than the head (0.915, 0.883 to 0.942; the intervals overlap). But the head can take a much weaker prior without harm to its probabilities, and that is what novelty needs. At τ = 0.01 all layers have 0.976, less than the head, and an NLL of 1.05 instead of 0.680.
# - **Cost.** A prediction takes 2.3 ms with the head and 52.1 ms with all layers. The largest memory was 3.5 GiB after the fits and 4.3 GiB after these predictions, with all posteriors held at once.
#
# ## Where is the uncertainty?
#
# The posterior over all layers can say which layers the variance comes from. The layers of a block are added up here.

# %%
whole = asked["all layers", chosen["all layers"]]
start = time.process_time()
where = whole.where(x[:few])
print(f"{time.process_time() - start:.1f} s for {few} images")
shares = {}
for layer in where.layers:
    part = ".".join(layer.name.split(".")[:2])
    variance, prior = shares.get(part, (0.0, 0.0))
    shares[part] = variance + layer.variance_share, prior + layer.prior_share
for part, (variance, prior) in shares.items():
    print(f"{part:10} {variance:6.1%} of the variance ({prior:6.1%} if nothing had been learned)")

# %%
figure = Figure(figsize=(8, 3), layout="constrained")
axes = figure.subplots()
places = range(len(shares))
axes.bar([i - 0.2 for i in places], [100 * share for share, _ in shares.values()], 0.4, label="posterior")
axes.bar([i + 0.2 for i in places], [100 * share for _, share in shares.values()], 0.4, label="prior alone")
axes.set_xticks(places, [part.removeprefix("blocks.") for part in shares])
axes.set(xlabel="part of the network (numbers are blocks)", ylabel="% of the variance")
axes.legend()
figure

# %% [markdown]
# Three places have most of it: the last normalisation, the head, and the beginning of the network; the nine blocks from the fourth on have between 0.8% and 2.0% each. The head has half of the share that it would have under the prior alone, less of it than any other part: it is what the data have determined best. The normalisation has only 2,048 weights, and 43.5% of the variance. That is why it was tried together with the head above: its variance makes the probabilities worse under a weak prior (NLL 0.755 at τ = 0.01), and novel inputs are found no better than with the head alone. A large share of the variance says where the uncertainty is; whether it is useful is another question, which needs the comparison.
#
# ## What is kept on disk

# %%
for name, posterior in posteriors.items():
    posterior.save("posterior.safetensors")
    print(f"{name:18} {os.path.getsize('posterior.safetensors') / GIB:.2f} GiB")

# %% [markdown]
# ## Decision
#
# **The head becomes Bayesian, with the prior tuned on validation data: `layers="last"`, then `tune`. All layers are fitted once, offline, to ask where the uncertainty is.**
#
# - Gain: digits are found among clothes with an AUROC of 0.9968 (0.9897 to 0.9991), where plain entropy has 0.873 (0.838 to 0.903) and all layers have 0.948 (0.923 to 0.967). For probabilities alone no posterior is needed here: the NLL is 0.677 with the head and 0.680 without.
# - Cost of the head: 5.9 s for the fit, 1.6 s for tuning, 2.3 ms for a prediction, 0.01 GiB on disk. All layers take 19.4 s, less than the 25 s of training, but 52.1 ms for a prediction, and 0.59 GiB. Three blocks lie between, at 9.7 s, 12.3 ms and 0.15 GiB, and find no more than the head (0.904 at τ = 1, 0.994 at τ = 0.01 with a worse NLL of 0.797).
# - Settings for all layers: Kronecker factors, `curvature="mc"` and `max_factor=2_048`, which brings 3.59 GiB down to 0.59 GiB; τ stays at its default of 1, since no other strength is better than its NLL of 0.680 on the validation images, and at 0.01 it is 1.005. The process, which held all posteriors at once, needed up to 4.3 GiB for fits and predictions. For a fit that takes hours add a checkpoint: here it has 0.03 GiB, and the fit that went on from it gave the same posterior.
# - What this does not show: the network was trained for one pass over 2,000 images, and is right for 74.5% of the test images. It is one network and one seed, the strengths were compared on 50 images, the test has 200, and digits are easy to tell from clothes.
# - What to do next: finish the training, then fit and tune the head again, which costs seconds. Try it on novel inputs that are closer to the task, with a threshold chosen on validation data as in the [tutorial on novelty](novelty_in_production.ipynb). If the head fails there, all layers are next: at the same τ = 1 they found somewhat more here (0.948, the head 0.915, with intervals that overlap).
