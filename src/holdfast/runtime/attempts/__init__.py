"""Attempts of steps and activities: started, limited, cancelled, reported."""
