"""Reports of erasures as HTML: one without anything of the removed rows, one with all diagnostics."""
