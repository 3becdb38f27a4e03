"""Everything that measures and demonstrates: imports the library, never the other way."""
