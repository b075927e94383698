"""Helpers of tests of exports."""

import pytest


def pdf_of(source, monkeypatch, **options):
    """Returns the file, and all text written in it."""
    fpdf = pytest.importorskip("fpdf")
    from serving.export.pdf import pdf

    written = []
    usual = fpdf.FPDF.write

    def write(self, h=None, text="", *rest, **more):
        written.append(text)
        return usual(self, h, text, *rest, **more)

    monkeypatch.setattr(fpdf.FPDF, "write", write)
    return pdf(source, **options), "".join(written)
