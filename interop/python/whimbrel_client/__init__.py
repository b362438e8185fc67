"""A second implementation of the Whimbrel protocol's client side, written from docs/protocol.md alone."""
