//! Fabric connections over the software NIC, live: two fabrics in this process, on a device of two ports on the loopback.

mod basics;
mod crowd;
mod devices;
mod faults;
mod identity;
mod keys;
mod load;
mod loss;
mod orders;
mod paths;
mod ports;
mod rails;
mod windows;
