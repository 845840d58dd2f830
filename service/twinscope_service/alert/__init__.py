"""Alerts that always arrive: who is told (target), what (text, payload), how (delivery, sender)."""
