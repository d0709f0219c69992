"""Methods: algorithms that map draws of the source to draws of the target. One file per method."""
