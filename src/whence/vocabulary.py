"""What other libraries call the things that whence has, so that an error can say what to write instead.

The names are those of laplace-torch, BackPACK, curvlinops, torch-uncertainty, bayesian-torch, scikit-learn and torch.
"""

from __future__ import annotations

# Values of options, in lower case with underscores
VALUES = {
    "kfac": "kron", "k_fac": "kron", "kronecker": "kron", "kronecker_factored": "kron", "kflr": "kron",
    "kron_laplace": "kron", "ekfac_ggn": "ekfac", "diagonal": "diag", "diag_ggn": "diag", "diagggnexact": "diag",
    "low_rank": "lowrank", "blockdiag": "block", "block_diag": "block", "block_diagonal": "block", "dense": "full",
    "gauss_newton": "ggn", "generalized_gauss_newton": "ggn", "generalised_gauss_newton": "ggn", "exact": "ggn",
    "type_2": "ggn", "type2": "ggn", "backpackggn": "ggn", "asdlggn": "ggn", "asdfghjklggn": "ggn",
    "curvlinopsggn": "ggn", "fisher": "mc", "mc_fisher": "mc", "sampled_fisher": "mc", "diagggnmc": "mc",
    "monte_carlo": "mc", "mc_sampling": "mc", "ef": "empirical", "empirical_fisher": "empirical",
    "backpackef": "empirical", "asdlef": "empirical", "curvlinopsef": "empirical", "curvlinopshessian": "hessian",
    "asdlhessian": "hessian", "full_hessian": "hessian",
    "multiclass": "classification", "categorical": "classification", "softmax": "classification",
    "cross_entropy": "classification", "crossentropy": "classification", "ce": "classification",
    "nll": "classification", "multilabel": "binary", "multi_label": "binary", "bernoulli": "binary",
    "binary_classification": "binary", "sigmoid": "binary", "logistic": "binary", "bce": "binary",
    "bce_with_logits": "binary", "gaussian": "regression", "normal": "regression", "mse": "regression",
    "mse_loss": "regression", "l2": "regression", "squared_error": "regression", "count": "poisson",
    "counts": "poisson", "poisson_nll": "poisson", "gaussian_nll": "heteroscedastic",
    "heteroskedastic": "heteroscedastic", "heteroskedastic_regression": "heteroscedastic",
    "glm": "linearised", "linearized": "linearised", "linear": "linearised", "nn": "sampled", "samples": "sampled",
    "sampling": "sampled", "laplace_bridge": "bridge", "bridge_norm": "bridge",
    "signal_to_noise": "snr", "mutual_information": "information", "mi": "information",
}  # fmt: skip

# Values that no other value stands for
ADVICE = {
    "marglik": "For the marginal likelihood call tune() without data.",
    "gridsearch": "tune(validation_data) searches on its own; omit method.",
    "cv": "tune(validation_data) minimises the validation loss; omit method.",
    "swag": "SWAG is a verb: whence.swag(model, data, likelihood=…).",
    "ensemble": "Ensembles are a verb: whence.fit_ensemble(factory, data, likelihood=…).",
    "variational": "Variational inference is a verb: whence.variational(model, data, likelihood=…).",
    "functional": "Outputs are linearised by default; there is no posterior over functions alone.",
    "bag": "It is called sharing='reduce' here.",
}

# Losses of torch, by the names of their classes and functions
LOSSES = {
    "CrossEntropyLoss": "classification", "cross_entropy": "classification", "NLLLoss": "classification",
    "nll_loss": "classification", "BCEWithLogitsLoss": "binary", "BCELoss": "binary",
    "binary_cross_entropy_with_logits": "binary", "binary_cross_entropy": "binary", "MSELoss": "regression",
    "mse_loss": "regression", "PoissonNLLLoss": "poisson", "poisson_nll_loss": "poisson",
    "GaussianNLLLoss": "heteroscedastic", "gaussian_nll_loss": "heteroscedastic",
}  # fmt: skip

# Keywords → what they may be called here; the first that the verb has
KEYWORDS: dict[str, tuple[str, ...]] = {
    "hessian_structure": ("structure",), "hessian_approx": ("structure",), "approximation": ("structure",),
    "subset_of_weights": ("layers",), "last_layer": ("layers",), "subset": ("layers",),
    "prior_prec": ("prior_precision",), "prior": ("prior_precision",), "prior_precisions": ("prior_precision",),
    "weight_decay": ("prior_precision",), "tau": ("prior_precision",), "damping_factor": ("prior_precision",),
    "n_samples": ("num_samples",), "samples": ("num_samples",), "num_draws": ("num_samples", "draws"),
    "mc_samples": ("draws", "num_samples"), "n_draws": ("num_samples", "draws"), "fisher_type": ("curvature",),
    "pred_type": ("method",), "predictive": ("method",), "link_approx": ("link",), "kfac_approx": ("sharing",),
    "loss": ("likelihood",), "loss_fn": ("likelihood",), "loss_function": ("likelihood",),
    "criterion": ("likelihood",), "task": ("likelihood",), "objective": ("likelihood",),
    "train_loader": ("data", "train"), "dataloader": ("data", "x", "test"), "loader": ("data", "x", "test"),
    "dataset": ("data", "x", "test"), "train_data": ("data", "train"), "inputs": ("x",), "X": ("x", "data"),
    "val_loader": ("validation", "data"), "valid_loader": ("validation", "data"), "val_data": ("validation", "data"),
    "val": ("validation", "data"), "valid": ("validation", "data"), "validation_data": ("validation", "data"),
    "validation_loader": ("validation", "data"), "test_loader": ("test", "data", "x"), "test_data": ("test", "data"),
    "ood_loader": ("ood",), "ood_data": ("ood",), "n_epochs": ("epochs",), "num_epochs": ("epochs",),
    "max_epochs": ("epochs",), "learning_rate": ("lr",), "n_members": ("members",), "num_members": ("members",),
    "num_models": ("members",), "num_estimators": ("members",), "n_models": ("members",), "num_chains": ("chains",),
    "warmup_steps": ("warmup",), "burn_in": ("warmup",), "n_warmup": ("warmup",), "dropout_rate": ("p",),
    "rate": ("p",), "random_state": ("seed", "generator"), "rng": ("generator",), "verbose": ("progress",),
    "progress_bar": ("progress",), "bs": ("batch_size",), "class_names": ("classes",), "names": ("classes",),
    "prior_structure": ("per_layer",), "model_or_posterior": ("model",), "net": ("model",), "network": ("model",),
    "device_type": ("device",), "amount": ("fraction",), "sparsity": ("fraction",), "criteria": ("by",),
}  # fmt: skip

# Keywords that need a sentence
SENTENCES = {
    "hessian_structure": "It is structure= here: 'kron', 'diag', 'full' or 'lowrank'.",
    "subset_of_weights": "It is layers= here: 'last' for the last layer, None for all.",
    "last_layer": "Pass layers='last'.",
    "last_layer_name": "Pass layers=[name of the module].",
    "subnetwork_indices": "Pass layers=whence.subnetwork(…), with structure='full'.",
    "sigma_noise": "The noise belongs to the likelihood: likelihood=whence.Gaussian(noise=σ).",
    "noise": "The noise belongs to the likelihood: likelihood=whence.Gaussian(noise=σ).",
    "backend": "It is curvature= here: 'ggn', 'mc', 'empirical' or 'hessian'.",
    "backend_kwargs": "See curvature=, draws= and sharing=.",
    "temperature": "See posterior.with_data_scale, whose argument is one over the temperature.",
    "pred_type": "It is method= here: 'linearised' (glm) or 'sampled' (nn).",
    "link_approx": "It is link= here: 'mc', 'probit' or 'bridge'.",
    "prior_structure": "Pass per_layer=True for a prior of each layer.",
    "weight_decay": "A weight decay λ of a mean loss over N examples is prior_precision=N·λ.",
    "grid_size": "tune() chooses its own trials.",
    "log_prior_prec_min": "tune() chooses its own range.",
    "log_prior_prec_max": "tune() chooses its own range.",
    "n_steps": "tune() stops on its own.",
    "init_prior_prec": "Call posterior.with_prior(…) before tune().",
    "cv_loss_with_var": "tune() minimises the validation negative log likelihood of the whole prediction.",
    "diagonal_output": "Ask the prediction for its variances.",
    "fitting": "Fits are done by whence.laplace; predictions need no such flag.",
    "enable_backprop": "Predictions are differentiable in inputs that require gradients.",
    "override": "To add data to a fit call posterior.update(data).",
    "asdl_fisher_kwargs": "See curvature= and draws=.",
    "separate_weight_and_bias": "Weight and bias of a layer are one block.",
    "dict_key_x": "A batch may be a mapping: its entries become keywords of the network.",
    "dict_key_y": "Name the targets 'labels' in a mapping.",
}

# Attributes of other libraries' posteriors
ATTRIBUTES = {
    "optimize_prior_precision": "call posterior.tune(validation_data), or tune() for the evidence",
    "optimize_prior_precision_base": "call posterior.tune(validation_data), or tune() for the evidence",
    "log_marginal_likelihood": "call posterior.log_evidence()",
    "log_marglik": "call posterior.log_evidence()",
    "fit": "whence.laplace(model, data, likelihood=…) fits at once; posterior.update(data) adds data",
    "forward": "call posterior.predict(x)",
    "predictive": "call posterior.predict(x)",
    "predictive_samples": "see posterior.predict(x, method='sampled').samples",
    "functional_samples": "call posterior.draw(num_samples)(x)",
    "functional_variance": "see the covariance of posterior.predict(x): logit_cov, or variance",
    "functional_covariance": "call posterior.predict(x, joint=True)",
    "posterior_covariance": "call posterior.covariance(), or variance() for the diagonal",
    "posterior_variance": "call posterior.variance()",
    "posterior_precision": "see posterior.covariance() and posterior.structures",
    "prior_prec": "it is posterior.prior_precision",
    "sigma_noise": "it is posterior.likelihood.noise",
    "H": "see posterior.curvature",
    "mean_": "call posterior.mean()",
    "predict_proba": "see posterior.predict(x).probs",
    "state_dict": "call posterior.save(path), and whence.load(path, model)",
    "load_state_dict": "call whence.load(path, model)",
    "eval": "the network is always evaluated in evaluation mode",
    "train": "a posterior is not trained; call posterior.update(data) for more data",
    "parameters_": "call posterior.mean()",
}

# Choices of layers
LAYERS = {
    "last_layer": "For the last layer pass layers='last'. ",
    "all": "For all layers leave layers out. ",
    "full": "For all layers leave layers out. ",
    "subnetwork": "For a subnetwork pass layers=whence.subnetwork(…) with structure='full'. ",
}
