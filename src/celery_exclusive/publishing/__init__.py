"""What happens when a task is published."""
