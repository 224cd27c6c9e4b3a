"""The whole engine in one seed: workers, clients and a store in one process, on virtual time.

`python -m tests.simulation --help` runs any seeds. What a seed does is drawn in `plan.py`; what
must be true of it is in `model.py`; `planted.py` has faults that it must find.
"""
