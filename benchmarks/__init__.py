"""How fast patchwords is, beside its peers and beside what the machine could do.

python -m benchmarks --list
"""
