//! The live port: UDP sockets on port 4791, with GSO and GRO (D4).
