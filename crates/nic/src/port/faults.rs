//! Faults (D8): a port around a port that drops, duplicates, reorders, corrupts, delays or CE-marks datagrams.
