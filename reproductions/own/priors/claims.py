def claims(units): return []
