//! The kernel's connection manager device, `/dev/infiniband/rdma_cm`, below the distribution's librdmacm.
