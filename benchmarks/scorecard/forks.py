def tried(): return []
