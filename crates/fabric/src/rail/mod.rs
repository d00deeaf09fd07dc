//! Rails: several ports and devices as one connection. Large operations are striped, small ones keep their order, weights follow what was measured.
