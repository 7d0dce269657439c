# %% [markdown]
# # An imbalanced classifier that defers
#
# A screening test: few patients are ill, a missed illness costs far more than a false alarm, and a doctor can be asked at a price. Such classifiers are often trained with class weights. This tutorial shows what weights do to the probabilities, and chooses between answering, alarming and asking by expected cost.
#
# The data are scikit-learn's diabetes set: ten measurements of 442 patients, and how far their disease had progressed a year later. The one patient in eight with the largest progression counts as severe. It is a demonstration, not medical advice.

# %% tags=["parameters"]
severe = 1 / 8  # the share of patients that count as severe
folds = 10
epochs = 40
cost_of_miss, cost_of_treatment, cost_of_doctor = 10.0, 4.0, 1.0

# %%
import torch
from sklearn.datasets import load_diabetes
from sklearn.model_selection import StratifiedKFold
from torch import nn

import whence
from whence import metrics

inputs, progression = (torch.tensor(values, dtype=torch.float32) for values in load_diabetes(return_X_y=True))
x = inputs / inputs.std(0)
y = (progression > progression.quantile(1 - severe)).long()
print(f"{len(y)} patients, {int(y.sum())} of them severe ({y.double().mean():.0%})")

# %% [markdown]
# ## Train with and without weights
#
# Every patient is in the test part of one fold, so that all of the few severe cases count. In each fold, a fifth of the training part is for validation.


# %%
def train(x, y, weights, seed):
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(x.shape[1], 16), nn.ReLU(), nn.Linear(16, 2))
    optimiser = torch.optim.AdamW(network.parameters(), lr=5e-3, weight_decay=1e-2)
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(32):
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(x[batch]), y[batch], weight=weights).backward()
            optimiser.step()
    return network.eval()


class Corrected(nn.Module):
    """The network without the shift that class weights trained into its logits."""

    def __init__(self, network, weights):
        super().__init__()
        self.network = network
        self.register_buffer("shift", weights.log())

    def forward(self, x):
        return self.network(x) - self.shift


found = {"no weights": [], "class weights": [], "weights, corrected": []}
order = []
for fold, (rest, test) in enumerate(StratifiedKFold(folds, shuffle=True, random_state=0).split(x, y)):
    rest, test = torch.tensor(rest), torch.tensor(test)
    fitting, held = rest[torch.arange(len(rest)) % 5 != 0], rest[torch.arange(len(rest)) % 5 == 0]
    weights = len(fitting) / (2 * y[fitting].bincount(minlength=2).float())
    plain, weighted = train(x[fitting], y[fitting], None, fold), train(x[fitting], y[fitting], weights, fold)
    networks = {"no weights": plain, "class weights": weighted, "weights, corrected": Corrected(weighted, weights)}
    for name, network in networks.items():
        posterior = whence.laplace(network, (x[fitting], y[fitting]), likelihood="classification", progress=False)
        posterior = posterior.tune((x[held], y[held]), progress=False)
        found[name].append(posterior.predict(x[test]).probs)
    order.append(test)
probabilities = {name: torch.cat(parts) for name, parts in found.items()}
y = y[torch.cat(order)]

# %% [markdown]
# ## What weights do to the probabilities

# %%
print(f"true share of severe cases {y.double().mean():.3f}")
for name, probs in probabilities.items():
    print(
        f"{name:20} mean probability {probs[:, 1].mean():.3f}   NLL {metrics.nll(probs, y)}   AUROC {metrics.auroc(probs[:, 1], y == 1)}"
    )

# %% [markdown]
# ## Decide by cost
#
# Three actions: do nothing (costs 10 if the case is severe), treat (costs 4 if it is not), or ask a doctor (costs 1, and is right). With a probability p the expected costs are 10 p, 4 (1 − p) and 1, and the cheapest action is taken. That rule is optimal only if p can be trusted.

# %%
y_severe = y.double()


def policy(p, ask=True):
    """The cost of every patient, and who is passed to a doctor and who is treated."""
    wait, treat = cost_of_miss * p, cost_of_treatment * (1 - p)
    asked = (torch.minimum(wait, treat) > cost_of_doctor) & ask
    treated = (treat < wait) & ~asked
    alone = torch.where(treated, cost_of_treatment * (1 - y_severe), cost_of_miss * y_severe)
    return torch.where(asked, cost_of_doctor, alone), asked, treated


def mean_of(values):
    """The mean, and its bootstrap interval of 95%."""
    generator = torch.Generator().manual_seed(0)
    means = values[torch.randint(len(values), (2000, len(values)), generator=generator)].mean(1)
    low, high = means.quantile(torch.tensor([0.025, 0.975], dtype=means.dtype)).tolist()
    return f"{values.mean():.2f} [{low:.2f}, {high:.2f}]"


for name, probs in probabilities.items():
    p = probs[:, 1].double()
    paid, asked, treated = policy(p)
    missed = int((y.bool() & ~asked & ~treated).sum())
    print(f"{name:20} cost of a patient {mean_of(paid)}   {asked.double().mean():.0%} asked, {missed} missed")
p = probabilities["no weights"][:, 1].double()
simple = torch.where(p > 0.5, cost_of_treatment * (1 - y_severe), cost_of_miss * y_severe)
print(f"{'p > 0.5':20} cost of a patient {mean_of(simple)}   nobody asked, {int((y.bool() & (p <= 0.5)).sum())} missed")
print(f"{'ask for everyone':20} cost of a patient {cost_of_doctor:.2f}")

# %% [markdown]
# The difference of two policies on the same patients is known better than each cost alone:

# %%
best, _, _ = policy(p)
print("p > 0.5 minus deferral:          ", mean_of(simple - best))
print("everyone minus deferral:         ", mean_of(cost_of_doctor - best))
print("class weights minus no weights:  ", mean_of(policy(probabilities["class weights"][:, 1].double())[0] - best))
print(
    "corrected minus no weights:      ", mean_of(policy(probabilities["weights, corrected"][:, 1].double())[0] - best)
)

# %% [markdown]
# ## Decision
#
# **Train without class weights, and ask a doctor where that is the cheapest action.**
#
# - Answering by p > 0.5 costs 0.93 a patient and misses 33 of the 56 severe cases. Acting by expected cost, with a doctor for 39% of the patients, costs 0.56: less by 0.36, with an interval from 0.17 to 0.60. Asking for everyone costs 1.00.
# - Class weights do not help. They raise the mean probability to 0.233 where 0.127 of the cases are severe, and the log loss from 0.273 to 0.336. The cost is higher by 0.08, which is not significant (−0.02 to 0.17).
# - If a network is weighted already, subtract the logarithms of the weights from its logits: the mean probability is then 0.143, and the cost differs by −0.01 (−0.07 to 0.06) from that without weights. [Class-weighted training](../class-weights.md) says why.
#
# With 56 severe cases all of this is known to the intervals above and no better.
