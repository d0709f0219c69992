"""The Python of the docs' pages runs as it stands there, and prints what is shown there."""

import pytest

from tests import pages

QUICK = ["docs/when-not-to-trust.md"]


@pytest.mark.parametrize("page", QUICK)
def test_a_page(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = [example for example in pages.examples(page) if example.shown is not None]
    assert shown, "a page that shows nothing cannot be checked"
    pages.run(page)


def test_what_a_page_shows_is_compared():
    assert pages.alike("k̂ 0.31, ESS 1,863\n", "k̂ 0.32, ESS 1,850\n")
    assert not pages.alike("k̂ 0.31\n", "k̂ 0.41\n")
    assert not pages.alike("accepted by Reweight: 0.31\n", "accepted by Transport: 0.31\n")
    assert not pages.alike("16 requests\n", "17 requests\n")
