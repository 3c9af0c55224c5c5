"""Real clients and real upstreams, whose exchanges are made directly and through a transparent route (TRN-2)."""
