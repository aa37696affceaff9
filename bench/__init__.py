"""The figures that the docs state: `make bench` writes speed.md, `make bench ROWS=noop` a row of it."""
