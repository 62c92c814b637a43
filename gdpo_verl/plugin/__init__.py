"""The code that runs inside verl. Only importing the module `entry` registers anything."""
