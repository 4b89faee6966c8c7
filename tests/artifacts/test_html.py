"""html: one page, nothing fetched, nothing executed, everything said in words."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from assay import gate
from assay.artifacts import html
from assay.finalize import with_diffs
from assay.report import Report
from assay.request import Policy
from assay.spec import ChangeThreshold, Direction, MetricKey, SlicingSpec, Threshold, ValueThreshold
from assay.values import CrossSliceValues, SliceValues, Undefined

EVIL = '<script>alert("x")</script>'
AUC, PRECISION = MetricKey("auc", "candidate"), MetricKey("precision", "candidate")


def slice_of(key, rows: int, auc: float, baseline: float, precision=0.5) -> SliceValues:
    values = {AUC: auc, AUC.of("baseline"): baseline, PRECISION: precision}
    return SliceValues(key, rows, float(rows), with_diffs(values, "baseline"), {})


def page(slices, checks=(), **kwargs) -> str:
    evidence = gate.Evidence(slices, baseline_name="baseline", hidden=kwargs.get("hidden", ()))
    verdict = gate.judge(evidence, checks, Policy())
    report = Report(
        slices,
        rows=sum(s.rows for s in slices if not s.key),
        files={"/data/a-00000-of-00001.gz": 100},
        fingerprint="00ffee",
        models={"candidate": {"uri": "gs://models/6"}, "baseline": {"uri": "gs://models/4"}},
        baseline_name="baseline",
        execution={"strategy": "MirroredStrategy", "versions": {"tensorflow": "2.16.2"}},
        **kwargs,
    )
    return html.render(report, verdict)


CHECKS = (
    gate.Check(AUC, Threshold(ValueThreshold(0.7), ChangeThreshold(Direction.HIGHER_IS_BETTER, -0.01))),
    gate.Check(PRECISION, Threshold(ValueThreshold(0.1))),
)


class Page(HTMLParser):
    """Collects what is in a page: tags with their attributes, text, and table rows."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict]] = []
        self.rows: list[list[str]] = []
        self.text: list[str] = []
        self.in_table = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.in_table |= tag == "table"
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        self.in_table &= tag != "table"

    def handle_data(self, data):
        self.text.append(data)
        if self.in_table and data.strip() and self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.strip()


def test_verdict_checks_and_values_are_there() -> None:
    found = Page(page([slice_of((), 100, 0.65, 0.7), slice_of((("pay", b"Cash"),), 40, 0.8, 0.75)], CHECKS))
    assert [
        "failed",
        "auc",
        "Overall",
        "0.65000",
        ">= 0.7",
        "0.70000",
        "",
        "below the bound",
    ] in found.rows
    change = next(r for r in found.rows if r[:3] == ["failed", "auc", "Overall"] and "change" in r[4])
    assert change[3:7] == ["0.65000", "change >= -0.01", "0.70000", "-0.05000"]
    assert any(r[:3] == ["ok", "auc", "pay=Cash"] for r in found.rows)
    assert ["pay=Cash", "40", "0.80000", "0.75000", "+0.05000", "0.50000"] in found.rows
    text = " ".join(found.text)
    assert "Not blessed" in text and "2 of 6 checks failed" in text
    assert "00ffee" in text and "gs://models/4" in text and "tensorflow 2.16.2" in text
    assert ["/data/a-00000-of-00001.gz", "100"] in found.rows


def test_blessed_says_so() -> None:
    text = " ".join(Page(page([slice_of((), 100, 0.9, 0.8)], CHECKS)).text)
    assert "Blessed" in text and "Not blessed" not in text and "All 3 checks passed" in text


def test_no_thresholds() -> None:
    text = " ".join(Page(page([slice_of((), 1, 0.9, 0.8)])).text)
    assert "Not blessed" in text and gate.NO_THRESHOLDS in text and "No check was made" in text


def test_undefined_values_give_their_reason() -> None:
    found = Page(page([slice_of((), 9, 0.9, 0.8, Undefined("no example is predicted positive"))], CHECKS))
    assert ["Overall", "9", "0.90000", "0.80000", "+0.10000", "undefined"] in found.rows
    assert ["precision", "no example is predicted positive", "Overall"] in found.rows


def test_nothing_from_the_data_becomes_markup() -> None:
    key = ((f"feature{EVIL}", EVIL.encode()),)
    values = {MetricKey(f"auc{EVIL}", "candidate"): Undefined(f"reason{EVIL}"), AUC: 0.5}
    slices = [slice_of((), 100, 0.9, 0.8), SliceValues(key, 3, 3.0, values, {})]
    threshold = Threshold(ValueThreshold(0.7), slicing_specs=(SlicingSpec((f"f{EVIL}",)),))
    text = page(
        slices,
        [*CHECKS, gate.Check(MetricKey(EVIL, "candidate"), threshold)],
        notes=[EVIL],
        hidden=[(key, 2)],
        cross_slices=[CrossSliceValues((), key, {AUC: 0.1})],
    )
    assert "<script" not in text
    assert text.count("&lt;script&gt;") >= 10
    assert not [t for t, _ in Page(text).tags if t in ("script", "img", "iframe", "object", "embed", "link")]


def test_the_page_stands_alone() -> None:
    text = page([slice_of((("site", b"https://example.com/a.js"),), 5, 0.9, 0.8)], CHECKS)
    for tag, attributes in Page(text).tags:
        assert not {"src", "href", "srcset", "action", "data", "background"} & set(attributes), tag
        assert not [a for a in attributes if a.startswith("on")], tag
    style = re.search(r"<style>(.*?)</style>", text, re.S)
    assert style and "url(" not in style.group(1) and "@import" not in style.group(1)
    assert "default-src 'none'" in text


def test_headings_and_tables_have_meaning() -> None:
    found = Page(page([slice_of((), 100, 0.9, 0.8)], CHECKS))
    tags = [t for t, _ in found.tags]
    assert tags.count("h1") == 1 and tags.count("h2") >= 4 and "main" in tags
    assert all("scope" in a for t, a in found.tags if t == "th")
    assert dict(found.tags)["html"] == {"lang": "en"}


@pytest.mark.parametrize("slices", [1_000, 20_000])
def test_size_is_bounded_and_what_is_left_out_is_said(slices: int) -> None:
    rng = np.random.default_rng(0)
    keys = [MetricKey(f"metric_{i}", "candidate") for i in range(12)]
    many = [slice_of((), 10**6, 0.9, 0.8)]
    for number in range(slices):
        values = {k: float(rng.random()) for k in keys}
        values |= {k.of("baseline"): float(rng.random()) for k in keys}
        key = (("company", f"a company with a name, number {number}".encode()),)
        many.append(SliceValues(key, number, 1.5, with_diffs(values, "baseline"), {}))
    checks = [gate.Check(k, Threshold(ValueThreshold(0.5))) for k in keys[:4]]
    text = page(many, checks, hidden=[((("h", i),), 1) for i in range(slices)])
    assert len(text.encode()) < 2_000_000
    rows = Page(text).rows
    assert any(r and r[0] == "Overall" for r in rows)
    if slices == 1_000:
        assert sum(r[0].startswith("company=a company") for r in rows if r) == 1_000
    else:
        assert re.search(r"[\d,]+ of 20,001 slices", text)
        assert re.search(r"The first 500 of [\d,]+ failed checks", text)


def test_the_proof_shows_both_sides(tmp_path):
    proof = {
        "rows_read": 100,
        "rows_counted": 100,
        "fingerprint_read": "00ffee",
        "fingerprint_counted": "00ffee",
        "bytes_read": 12345,
    }
    rows = Page(page([slice_of((), 100, 0.9, 0.9)], proof=proof)).rows
    assert ["rows", "100", "100"] in rows
    assert ["fingerprint", "00ffee", "00ffee"] in rows
    assert ["bytes of records", "12,345, all that the files hold", ""] in rows
