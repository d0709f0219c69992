"""A corpus of models as users of NumPyro, PyMC and Stan write them, each with requests to erase rows.

python -m tests.corpus list                  the names of the cases
python -m tests.corpus references [NAME …]   long runs on the kept data: tests/corpus/references/NAME.json
python -m tests.corpus run [NAME …]          fit, erase, compare: tests/corpus/results/NAME.json
python -m tests.corpus page                  docs/results/models.md, from the results
"""
