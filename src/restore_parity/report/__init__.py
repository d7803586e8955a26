"""The report of one comparison, and the debugger of one of its cuts."""
