# pyright: strict
"""What type checkers know of a prediction: its class follows from the likelihood.

``make test`` checks this file with mypy and pyright in strict mode.
"""

import torch
from torch import Tensor, nn

import whence

generator = torch.Generator().manual_seed(0)
network = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 3))
x = torch.randn(60, 2, generator=generator)
labels = torch.randint(3, (60,), generator=generator)

posterior = whence.laplace(network, (x, labels), likelihood="classification", progress=False)
probs: Tensor = posterior.predict(x).probs
disagreement: Tensor = posterior.tune(progress=False).predict(x).epistemic
together: Tensor = posterior.predict(x, joint=True).covariance

numbers = whence.laplace(nn.Linear(2, 1), (x, x[:, :1]), likelihood=whence.Gaussian(0.1), progress=False)
low, high = numbers.predict(x).interval(0.9)
counts = whence.laplace(nn.Linear(2, 1), (x, labels[:, None].float()), likelihood=whence.Poisson(), progress=False)
rate: Tensor = counts.predict(x).mean

print(f"class probabilities      {list(probs.shape)}")
print(f"joint covariance         {list(together.shape)}")
print(f"disagreement             {disagreement.mean():.3f} nats on average")
print(f"90% interval of a value  {low.mean():.2f} to {high.mean():.2f} on average")
print(f"expected count           {rate.mean():.2f} on average")
