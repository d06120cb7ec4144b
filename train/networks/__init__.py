"""Networks: encoders, memories, hidden layers, heads and action distributions."""
