//! Which devices there are: one for each usable network interface, the loopback, and what the configuration adds.
