"""watch(): the attention of a running model, measured call by call."""
