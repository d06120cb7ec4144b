"""Files of the project that `wdjax new` writes, with the name my_project."""
