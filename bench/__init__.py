"""The figures that the docs state, as ratios within one run: `make bench`. Times are of this machine."""
