"""Methods for chains that never converged, as those of networks: they continue, or go back, without the rows."""
