//! A port around a port that writes what passes to a pcapng file.
