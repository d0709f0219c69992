"""Can the verdict be trusted? Erasures from posteriors that are known exactly, each verdict held against the truth."""
