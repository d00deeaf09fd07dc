//! The responder against a peer that is a list of packets: one says exactly what arrives and sees exactly what leaves.
