"""The way of a call from the caller to the broker: options, keys, header, and one of the senders."""
