//! The balancing rule: which connections should leave which ports. A pure function of what was measured, run alike by the control plane, by the
//! simulator and by tests. It may not read a clock or remember anything outside its arguments.
