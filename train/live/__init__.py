"""Games in a browser, in which a person controls one agent (`wdjax play`)."""
