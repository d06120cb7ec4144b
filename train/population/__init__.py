"""Populations: many members of one configuration, trained together by one program."""
