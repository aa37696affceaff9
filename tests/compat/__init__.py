"""The recipes as people have them, with their defects, beside ours."""
