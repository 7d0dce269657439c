"""What the cards of the inputs say about novelty, and under which prior their numbers are."""

from __future__ import annotations

from dataclasses import replace

import pytest

import whence
from tests.auditing.cases import Given
from whence.numerals import p_value
from whence.report.page.render import render
from whence.where.novelty_prior import with_novelty_prior

Made = tuple[Given, whence.Audit]


def test_cards_have_the_p_value_of_the_combination_first(plain: Made) -> None:
    given, audit = plain
    detector = whence.combined_detector(audit.posterior, given.validation, train=given.train)
    shown = audit.results.inputs
    assert shown is not None
    for one in shown:
        data = given.test[0] if one.set == "test" else given.ood
        both = float(detector(data[one.index : one.index + 1]).p_value)
        assert one.combined_p_value == pytest.approx(both, rel=1e-4)
        flags = "flags it" if both <= 0.01 else "does not flag it"
        assert one.words.startswith(f"The combination of detectors {flags} (p = {p_value(both)}). By layer, it ")
    page = render(audit.results)
    assert page.index("p, combination of detectors") < page.index("p, novelty by layer")


def test_without_a_combination_the_card_has_novelty_by_layer_alone(plain: Made) -> None:
    _, audit = plain
    assert audit.results.inputs is not None
    shown = tuple(replace(one, combined_p_value=None) for one in audit.results.inputs)
    assert "p, combination of detectors" not in render(replace(audit.results, inputs=shown))


def test_every_prior_is_named_with_its_value_and_its_results(plain: Made) -> None:
    given, audit = plain
    posterior = audit.posterior.as_laplace("this")
    own = audit.results.run.own_priors
    assert own["predictions"] == posterior.prior.describe()
    assert own.get("profile", own["predictions"]) == audit.profile_posterior.as_laplace("this").prior.describe()
    reference = whence.reference_of(posterior, given.validation)
    weak = with_novelty_prior(posterior, reference.precision_for(posterior))
    assert own["novelty"] == weak.prior.describe()
    page = render(audit.results)
    assert "Which prior is used where" in page and all(prior in page for prior in own.values())


def test_a_profile_with_a_prior_of_its_own_has_a_row(plain: Made) -> None:
    given, audit = plain
    strong = audit.posterior.as_laplace("this").with_prior(whence.Relative(1e7))
    found = whence.audit(strong, test=given.test, sections=["profile", "layers"], progress=False).results
    priors = found.run.priors or ()
    assert [one.of for one in priors][:2] == ["predictions", "profile"]
    assert priors[1].prior == found.profile.prior != priors[0].prior  # type: ignore[union-attr]
    assert "weight maps" in priors[1].results and "weight maps" not in priors[0].results
