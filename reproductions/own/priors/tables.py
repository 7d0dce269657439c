def tables(units): return ""
