"""Where other libraries let sepnorm in: one file a library, and only where the library has a place for it."""
