"""From a command to a finished run: composed, checked, claimed, started, followed, resumed."""
