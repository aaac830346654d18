"""Hooks into other libraries: one file per library, and only where the library has an official extension point."""
