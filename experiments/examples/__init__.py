"""Short example programs, all covered by the tests."""
