//! Fabric connections over the software NIC, live: two fabrics in this process, on a device of two ports on the loopback.

mod basics;
mod faults;
mod identity;
mod keys;
mod load;
mod ports;
mod rails;
