"""Recorded ladders: made, checked, packed, and their page."""
