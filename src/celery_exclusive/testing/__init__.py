"""For your own tests: the `lock_store` fixture."""
