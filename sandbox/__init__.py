"""Where code comes from and where it lives: compiling, loading, symbols, executable memory, tasks."""
