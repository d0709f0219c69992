"""Figures of results with matplotlib, and small SVG pictures for reports."""
