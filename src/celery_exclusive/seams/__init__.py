"""The private names of other packages: all of them are touched in this room, and nowhere else.

`table.py` lists them, with the purpose and the age of each, `probe.py` looks for them in what is installed.
The other files have one package each. Their functions are small, and are named by what they do: no policy.
"""
