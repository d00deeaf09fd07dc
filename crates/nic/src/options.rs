//! What the software provider is told: by its caller, by the file that `SCALEFABRIC_CONFIG` names, and by a few
//! environment variables.
