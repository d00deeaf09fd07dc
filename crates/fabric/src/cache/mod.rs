//! The registration cache, for memory that the application owns: ranges that are registered already are found, others are registered and remembered, and
//! what the application unmaps is forgotten before anybody can hit it. It may never hand out a registration of pages that are gone.
