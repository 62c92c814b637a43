"""Everything that runs inside verl. Importing it registers nothing: `entry` does."""
