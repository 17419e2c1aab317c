"""From an analysed trace to costs, gains and what to do."""
