"""Images: masked autoencoders with separate norms."""
