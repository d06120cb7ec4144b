"""Everything that a run is, as pytrees, and the interface of an algorithm."""
