"""Published learning curves: what the learning table's presets reach, stored, and a script that measures it again."""
