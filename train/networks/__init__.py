"""Networks: encoders, hidden layers, heads, and the distributions of actions."""
