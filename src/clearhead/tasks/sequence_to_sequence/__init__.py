"""What tasks share whose model writes texts: search settings, splitting and joining of long inputs, loop guards."""
