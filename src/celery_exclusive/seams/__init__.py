"""The private names of other packages: all of them are touched in this room, and nowhere else.

`table.py` lists them, with the purpose and the age of each, `probe.py` looks for them in what is installed.
The other files touch them, for one package or one purpose each: small functions without policy.
"""
