"""What goes with other frameworks."""
