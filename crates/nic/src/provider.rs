//! The software provider: finds devices, opens them, and joins engine, ports, worker and the shared device to one whole.
