//! The files under `/sys/class/infiniband` and `/dev/infiniband`, made from the live state of the devices.
