"""Short programs to read and to start from; every one is run by the tests."""
