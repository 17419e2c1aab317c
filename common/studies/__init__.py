"""Studies around the ladder, one package each, all of one shape: measure, record, view, figure."""
