"""What a run is: dataclasses, read from YAML strictly."""
