"""What the package needs of Python, JAX and the machine; nothing here knows of posteriors."""
